"""Kernels of our own on the host, where a block is one thread: what they compute is tested without a GPU."""

import hashlib
import re
import subprocess
from pathlib import Path

HOST = """
#include <cmath>
#include <cstring>
#include <cstdint>
using namespace std;
#define MAGNETO_HOST
#define DEVICE inline
#define THREADS(count) 1
#define SHARED static
#define ASSURE(condition) if (!(condition)) __builtin_trap()
#define __global__ static
#define __restrict__
#define __launch_bounds__(count)
struct Dim { int x; };
static thread_local Dim blockIdx, threadIdx, blockDim{1};
struct bf16; struct f16;
static inline float __int_as_float_(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline unsigned bits_of(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
"""
HALVES = """
static inline float to_float(bf16 x) { return __int_as_float_((int)((unsigned)x.bits << 16)); }
static inline float to_float(f16 x) { _Float16 y; memcpy(&y, &x, 2); return y; }
static inline f16 to_f16(float x) { _Float16 y = x; f16 z; memcpy(&z, &y, 2); return z; }
static inline void wait() {}
static inline void publish() {}
static inline unsigned arrive(unsigned* count) { return (*count)++; }
static inline void load_latest(float* to, const float* from) { memcpy(to, from, 16); }
"""


def for_the_host(source: str) -> str:
    """The same kernels as C++, each with a function that goes through its blocks."""
    body = source.replace("struct f16 { unsigned short bits; };", "struct f16 { unsigned short bits; };" + HALVES, 1)
    body = body.replace('extern "C" __global__ void', "static void")
    calls = []
    for name, parameters in re.findall(r"^static void (?:__launch_bounds__\(\d+\) )?(k\d+)\((.*?)\) \{", body, re.M):
        types = [re.sub(r"(__restrict__ )?\w+$", "", parameter).strip() for parameter in parameters.split(",")]
        given = ", ".join(f"({type})p[{i}]" for i, type in enumerate(types))
        calls.append(
            f'extern "C" void launch_{name}(void** p, int blocks) '
            f"{{ for (int b = 0; b < blocks; ++b) {{ blockIdx.x = b; {name}({given}); }} }}"
        )
    return HOST + body + "\n".join(calls)


class HostCompiler:
    """A callable for Graph._fused; keeps the source that it was given."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.source = folder, ""

    def __call__(self, source: str) -> str:
        self.source = source
        text = for_the_host(source)
        path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
        if not path.exists():
            path.with_suffix(".cpp").write_text(text)
            command = [
                "g++",
                "-std=c++17",
                "-O1",
                "-fPIC",
                "-shared",
                "-ffp-contract=off",
                "-fno-strict-aliasing",
                "-w",
            ]
            made = subprocess.run(
                [*command, "-o", str(path), str(path.with_suffix(".cpp"))], capture_output=True, text=True, check=False
            )
            assert made.returncode == 0, made.stderr[:3000]
        return str(path)
