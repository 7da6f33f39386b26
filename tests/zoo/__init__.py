"""The model zoo: small random models of many architectures, shared by tests and benchmarks."""
