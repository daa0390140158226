"""Everything that uses the library: training runs and benchmarks."""
