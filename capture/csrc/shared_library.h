// A shared library, loaded while the program runs and closed with this object.
#pragma once

#include <dlfcn.h>

#include <string>

namespace capture {

class SharedLibrary {
 public:
  // False if it cannot be loaded; dlerror says why. `flags`: RTLD_NOLOAD among them asks for one that is loaded already.
  explicit SharedLibrary(const char* name, int flags = 0) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL | flags)) {}
  ~SharedLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;
  explicit operator bool() const { return handle_ != nullptr; }

  // The address of a symbol, nullptr where there is none.
  void* symbol(const std::string& name) const { return dlsym(handle_, name.c_str()); }

 private:
  void* handle_;
};

}  // namespace capture
