"""From nests that are to be fused to kernels (`kernels`), and from a kernel to what one machine runs: for processors, `cpu`."""
