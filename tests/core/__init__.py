"""Tests of the torch-free core: the interpreter, the guards, effects and lifetimes, on plain Python programs."""
