"""Programs written to mislead the compiler, each run eager and compiled and compared call by call."""
