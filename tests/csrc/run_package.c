/* run_package PACKAGE IN OUT: runs a package on the arguments that lie in the file IN one behind the other, and writes its results to OUT,
   each as a line with its dtype and sizes, and then its elements. */
#include <stdio.h>
#include <stdlib.h>

#include "capture_package.h"

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, capture_error());
  return 1;
}

static size_t count_of(CaptureTensor tensor) {
  size_t count = 1;
  for (size_t i = 0; i < tensor.dimensions; i++) count *= (size_t)tensor.sizes[i];
  return count;
}

static size_t size_of(const char *dtype) {
  size_t bits = 0;
  for (const char *at = dtype; *at; at++) bits = *at >= '0' && *at <= '9' ? bits * 10 + (size_t)(*at - '0') : bits;
  return bits == 0 ? 1 : bits / 8; /* bool */
}

/* Writes the elements in the order of their indices, wherever they lie. */
static void write_elements(FILE *out, CaptureTensor tensor, size_t dimension, const char *at) {
  size_t size = size_of(tensor.dtype);
  if (dimension == tensor.dimensions) {
    fwrite(at, size, 1, out);
    return;
  }
  for (int64_t i = 0; i < tensor.sizes[dimension]; i++) {
    write_elements(out, tensor, dimension + 1, at + i * tensor.strides[dimension] * (int64_t)size);
  }
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  CapturePackage *package = capture_open(argv[1]);
  if (package == NULL) return fail("open");
  FILE *in = fopen(argv[2], "rb"), *out = fopen(argv[3], "wb");
  size_t count = capture_input_count(package);
  CaptureTensor *inputs = calloc(count + 1, sizeof *inputs);
  for (size_t i = 0; i < count; i++) {
    inputs[i] = capture_input(package, i);
    size_t bytes = count_of(inputs[i]) * size_of(inputs[i].dtype);
    inputs[i].strides = NULL;
    inputs[i].data = malloc(bytes + 1);
    if (fread(inputs[i].data, 1, bytes, in) != bytes) return 3;
  }
  for (int round = 0; round < 2; round++) { /* a second call uses what the first one left */
    CaptureResults *results = capture_run(package, inputs, count);
    if (results == NULL) return fail("run");
    for (size_t i = 0; round == 1 && i < capture_result_count(results); i++) {
      CaptureTensor result = capture_result(results, i);
      fprintf(out, "%s", result.dtype);
      for (size_t d = 0; d < result.dimensions; d++) fprintf(out, " %lld", (long long)result.sizes[d]);
      fputc('\n', out);
      write_elements(out, result, 0, result.data);
    }
    capture_free(results);
  }
  capture_close(package);
  return fclose(out) != 0;
}
