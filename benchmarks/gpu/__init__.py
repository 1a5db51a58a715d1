"""A thin engine on one CUDA GPU, and a cluster of such engines in virtual time, to compare Headway's predictions with.

An instrument, not a product: `python -m benchmarks.gpu --help`. docs/confirmed.md says what was measured with it.
"""
