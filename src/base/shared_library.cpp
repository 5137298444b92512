#include "base/shared_library.h"

#include <dlfcn.h>

#include "base/file.h"

namespace mnist_train {

std::filesystem::path find_program_file(const std::string& name) {
  const std::filesystem::path folder = executable_folder();
  for (const auto& place : {folder, folder.parent_path() / "libexec" / "mnist-train"}) {
    if (is_there(place / name)) return place / name;
  }
  return {};
}

SharedLibrary::SharedLibrary(const std::string& file, Symbols symbols)
    : handle_(::dlopen(file.c_str(),
                       RTLD_NOW | (symbols == Symbols::kShared ? RTLD_GLOBAL : RTLD_LOCAL))) {
  if (handle_ == nullptr) error_ = ::dlerror();
}

void* SharedLibrary::address_of(const char* name) const {
  return handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
}

}  // namespace mnist_train
