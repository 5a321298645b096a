"""Scores engines that make graphs of PyTorch programs on code as people write it: our own programs in the styles found on GitHub
(`programs/`), or a checkout of ParityBench. `python -m paritybench_subset --help` says how, docs/paritybench.md what comes out."""
