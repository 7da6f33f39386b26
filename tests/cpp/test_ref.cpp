// py::Ref: every way to make, copy, move and drop one leaves the reference count right.
#include "check.h"
#include "cpython/ref.h"

using magneto::py::Ref;

namespace {

// A new object that only the test refers to.
PyObject* fresh() { return PyList_New(0); }

}  // namespace

TEST(steal_takes_over_the_reference) {
  PyObject* object = fresh();
  {
    Ref ref = Ref::steal(Py_NewRef(object));
    CHECK(ref.get() == object);
    CHECK_EQ(Py_REFCNT(object), 2);
  }
  CHECK_EQ(Py_REFCNT(object), 1);
  Py_DECREF(object);
}

TEST(borrow_adds_its_own_reference) {
  PyObject* object = fresh();
  {
    Ref ref = Ref::borrow(object);
    CHECK_EQ(Py_REFCNT(object), 2);
  }
  CHECK_EQ(Py_REFCNT(object), 1);
  Py_DECREF(object);
}

TEST(copies_count_and_moves_do_not) {
  PyObject* object = fresh();
  {
    Ref first = Ref::borrow(object);
    Ref copy = first;
    CHECK_EQ(Py_REFCNT(object), 3);
    Ref moved = std::move(first);
    CHECK(!first);
    CHECK(moved.get() == object);
    CHECK_EQ(Py_REFCNT(object), 3);
  }
  CHECK_EQ(Py_REFCNT(object), 1);
  Py_DECREF(object);
}

TEST(assignment_drops_what_was_held) {
  PyObject* old = fresh();
  PyObject* next = fresh();
  {
    Ref ref = Ref::borrow(old);
    ref = Ref::borrow(next);
    CHECK_EQ(Py_REFCNT(old), 1);
    CHECK_EQ(Py_REFCNT(next), 2);
    Ref& alias = ref;
    ref = alias;
    CHECK_EQ(Py_REFCNT(next), 2);
    ref = Ref();
    CHECK_EQ(Py_REFCNT(next), 1);
  }
  Py_DECREF(old);
  Py_DECREF(next);
}

TEST(release_hands_the_reference_to_the_caller) {
  PyObject* object = fresh();
  Ref ref = Ref::borrow(object);
  PyObject* owned = ref.release();
  CHECK(!ref);
  CHECK_EQ(Py_REFCNT(object), 2);
  Py_DECREF(owned);
  Py_DECREF(object);
}

TEST(an_empty_ref_is_false_and_harmless) {
  Ref empty;
  Ref copy = empty;
  Ref borrowed = Ref::borrow(nullptr);
  CHECK(!empty && !copy && !borrowed);
  CHECK(empty.release() == nullptr);
}
