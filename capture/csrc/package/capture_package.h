/* Runs packages that `capture.package` has written, without Python. The library is libcapture_package.so, beside this file's folder in
   the installed `capture`; it needs torch's libraries (libtorch_cpu.so, libc10.so). Functions may be called by several threads. */
#ifndef CAPTURE_PACKAGE_H
#define CAPTURE_PACKAGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CapturePackage CapturePackage;
typedef struct CaptureResults CaptureResults;

/* A tensor on the processor. `dtype`: its name in torch ("float32"). `strides`: in elements; of an argument also NULL, for elements one
   behind the other. `data`: its first element; NULL in what describes an argument. */
typedef struct {
  const char *name;
  const char *dtype;
  size_t dimensions;
  const int64_t *sizes;
  const int64_t *strides;
  void *data;
} CaptureTensor;

/* What went wrong in the last call on this thread that returned NULL, in one sentence. */
const char *capture_error(void);

/* Opens a package; its weights are mapped into memory, not copied. NULL if it cannot be used here. */
CapturePackage *capture_open(const char *path);
void capture_close(CapturePackage *package);

/* The arguments that it takes, in order. What describes them lives as long as the package. */
size_t capture_input_count(const CapturePackage *package);
CaptureTensor capture_input(const CapturePackage *package, size_t number);

/* Runs it. `inputs`: `count` tensors, as `capture_input` describes them; the caller keeps their memory, which is written to only where
   the packaged function writes to its arguments. NULL if an argument is not as it must be, or an operation fails. */
CaptureResults *capture_run(CapturePackage *package, const CaptureTensor *inputs, size_t count);

/* The results, in the order of the function's. They live until they are freed. */
size_t capture_result_count(const CaptureResults *results);
CaptureTensor capture_result(const CaptureResults *results, size_t number);
void capture_free(CaptureResults *results);

#ifdef __cplusplus
}
#endif

#endif
