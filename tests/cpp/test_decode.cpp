// Decoded instructions and the exception table, against what Python's own `dis` says.
#include <vector>

#include "cpython/cpython.h"
#include "cpython/operations.h"
#include "python_world.h"

using namespace magneto;
using check::PythonWorld;

namespace {

constexpr const char* kFunctions = R"(
import dis, sys

def plain(a, b):
    return a + b

def loops(items):
    total = 0
    for item in items:
        while item:
            item -= 1
            if item == 3: break
            total += item
    return total

def handlers(x):
    try:
        with x as y:
            try:
                return y()
            except KeyError as error:
                raise ValueError from error
            finally:
                print(x)
    except (TypeError, ValueError):
        return None

def generator(n):
    try:
        yield from range(n)
    finally:
        yield 1

async def coroutine(x):
    async with x:
        await x

exec("def long(x):\n" + "".join(f"  v{i} = x + {i}.5\n" for i in range(300)) +
     "  while x:\n    try: x = v0\n    except ValueError: " + "; ".join(f"v{i} = v{i+1}" for i in range(299)) + "\n  return v299\n")

functions = [plain, loops, handlers, generator, coroutine, long]
codes = [f.__code__ for f in functions]

def instructions(code):
    return [(i.offset // 2, i.opcode, i.arg or 0) for i in dis.get_instructions(code)]

def handler_of(code, index):
    for entry in dis._parse_exception_table(code):
        if entry.start <= 2 * index < entry.end:
            return entry.target // 2, entry.depth, entry.lasti
    return None
)";

long item(PyObject* tuple, int i) { return PyLong_AsLong(PyTuple_GET_ITEM(tuple, i)); }

}  // namespace

TEST(every_instruction_is_what_dis_says) {
  PythonWorld world(kFunctions);
  for (Py_ssize_t c = 0; c < PyList_GET_SIZE(world["codes"]); ++c) {
    PyObject* code = PyList_GET_ITEM(world["codes"], c);
    world.set("code", code);
    const mg_instruction* decoded = mg_decoded((PyCodeObject*)code);
    CHECK(decoded != nullptr);
    py::Ref expected = world.value("instructions(code)");
    Py_ssize_t count = PyList_GET_SIZE(expected.get());
    CHECK(count > 3);
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* row = PyList_GET_ITEM(expected.get(), i);
      const mg_instruction& instruction = decoded[item(row, 0)];
      CHECK_EQ(static_cast<long>(instruction.opcode), item(row, 1));
      CHECK_EQ(static_cast<long>(instruction.arg), item(row, 2));
      if (i + 1 < count) CHECK_EQ(static_cast<long>(instruction.next), item(PyList_GET_ITEM(expected.get(), i + 1), 0));
    }
  }
}

TEST(an_instruction_restarts_where_it_runs_whole) {
  PythonWorld world(kFunctions);
  world.run(
      "code = long.__code__\n"
      "rows = [(i.offset // 2, i.opname) for i in dis.get_instructions(code)]\n"
      "starts, first = {}, None\n"
      "for index, name in rows:\n"
      "    if first is None: first = index\n"
      "    starts[index] = first\n"
      "    if name not in ('EXTENDED_ARG', 'TO_BOOL'): first = None\n"
      "extended = sum(name == 'EXTENDED_ARG' for _, name in rows)\n");
  CHECK(world.number("extended") > 10);
  const mg_instruction* decoded = mg_decoded((PyCodeObject*)world["code"]);
  Py_ssize_t position = 0;
  PyObject *index, *start;
  while (PyDict_Next(world["starts"], &position, &index, &start)) {
    long i = PyLong_AsLong(index);
    CHECK_EQ(i - decoded[i].lead, PyLong_AsLong(start));
  }
}

TEST(a_jump_says_where_it_goes) {
  PythonWorld world(kFunctions);
  // Where a loop or a delegation ends, later versions have instructions that the operation does itself.
  world.run(
      "def targets(code):\n"
      "    rows = list(dis.get_instructions(code))\n"
      "    for i in rows:\n"
      "        if i.opcode not in dis.hasjrel + dis.hasjabs: continue\n"
      "        end = i.argval // 2\n"
      "        if i.opname == 'SEND': end += sys.version_info >= (3, 12)\n"
      "        if i.opname == 'FOR_ITER': end += sys.version_info[1] - 11\n"
      "        yield i.offset // 2, end\n");
  for (Py_ssize_t c = 0; c < PyList_GET_SIZE(world["codes"]); ++c) {
    PyObject* code = PyList_GET_ITEM(world["codes"], c);
    world.set("code", code);
    const mg_instruction* decoded = mg_decoded((PyCodeObject*)code);
    py::Ref targets = world.value("list(targets(code))");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(targets.get()); ++i) {
      PyObject* row = PyList_GET_ITEM(targets.get(), i);
      CHECK_EQ(static_cast<long>(decoded[item(row, 0)].operand), item(row, 1));
    }
  }
}

TEST(operations_have_the_same_names_and_operands_in_all_versions) {
  PythonWorld world(
      "def f(a, b):\n"
      "    x = a.name\n"
      "    a.method(x)\n"
      "    if x < b: return +x\n"
      "    return f'{x!r:>5}'\n"
      "code = f.__code__\n"
      "names = code.co_names.index('name'), code.co_names.index('method')\n");
  auto* code = (PyCodeObject*)world["code"];
  const mg_instruction* decoded = mg_decoded(code);
  std::vector<std::pair<int, uint32_t>> found;
  for (int i = 0; i < mg_code_units(code); i = decoded[i].next) {
    CHECK(decoded[i].operation != MG_UNKNOWN);
    int operation = decoded[i].operation;
    if (operation == MG_LOAD_ATTR || operation == MG_LOAD_METHOD || operation == MG_COMPARE_OP ||
        operation == MG_UNARY_POSITIVE)
      found.emplace_back(operation, decoded[i].operand);
  }
  CHECK_EQ(found.size(), 4u);
  CHECK(found[0].first == MG_LOAD_ATTR && found[0].second == item(world["names"], 0));
  CHECK(found[1].first == MG_LOAD_METHOD && found[1].second == item(world["names"], 1));
  CHECK(found[2].first == MG_COMPARE_OP && (found[2].second & ~MG_AS_BOOL) == Py_LT);
  CHECK_EQ(found[3].first, static_cast<int>(MG_UNARY_POSITIVE));
}

TEST(code_that_has_warmed_up_decodes_to_the_same) {
  PythonWorld world(kFunctions);
  auto* code = (PyCodeObject*)PyList_GET_ITEM(world["codes"], 1);
  std::vector<mg_instruction> before(mg_code_units(code)), after(mg_code_units(code));
  CHECK(mg_decode(code, before.data()));
  world.run("for _ in range(200): loops([5, 2, 9])");
  CHECK(mg_decode(code, after.data()));
  for (size_t i = 0; i < before.size(); ++i) {
    CHECK_EQ(static_cast<int>(after[i].opcode), static_cast<int>(before[i].opcode));
    CHECK_EQ(after[i].arg, before[i].arg);
    CHECK_EQ(after[i].next, before[i].next);
  }
}

TEST(a_code_object_is_decoded_once) {
  PythonWorld world("def f(): return 1");
  py::Ref code = world.value("f.__code__");
  const mg_instruction* first = mg_decoded((PyCodeObject*)code.get());
  CHECK(first && mg_decoded((PyCodeObject*)code.get()) == first);
  py::Ref other = world.value("f.__code__.replace(co_name='g')");
  CHECK(mg_decoded((PyCodeObject*)other.get()) != first);
}

TEST(the_innermost_handler_is_found_everywhere) {
  PythonWorld world(kFunctions);
  int covered = 0, free = 0;
  for (Py_ssize_t c = 0; c < PyList_GET_SIZE(world["codes"]); ++c) {
    PyObject* code = PyList_GET_ITEM(world["codes"], c);
    world.set("code", code);
    for (int index = 0; index < mg_code_units((PyCodeObject*)code); ++index) {
      py::Ref at = py::Ref::steal(PyLong_FromLong(index));
      world.set("index", at.get());
      py::Ref expected = world.value("handler_of(code, index)");
      mg_handler found;
      bool is_covered = mg_find_handler((PyCodeObject*)code, index, &found);
      CHECK_EQ(is_covered, expected.get() != Py_None);
      (is_covered ? covered : free) += 1;
      if (!is_covered) continue;
      CHECK_EQ(static_cast<long>(found.handler), item(expected.get(), 0));
      CHECK_EQ(static_cast<long>(found.depth), item(expected.get(), 1));
      CHECK_EQ(found.push_offset, PyTuple_GET_ITEM(expected.get(), 2) == Py_True);
    }
  }
  CHECK(covered > 100 && free > 100);
}

TEST(code_without_handlers_has_none) {
  PythonWorld world("def f(x): return x + 1");
  mg_handler found;
  for (int index = 0; index < 4; ++index)
    CHECK(!mg_find_handler((PyCodeObject*)world.value("f.__code__").get(), index, &found));
}
