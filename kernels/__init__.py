"""Paged prefill attention kernels for head size 256: CUDA C++, a CPU twin, and the dense reference."""
