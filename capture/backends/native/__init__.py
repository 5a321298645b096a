"""The native backend: aten graphs to fused C++ kernels and the plan that runs them."""
