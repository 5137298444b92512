#include "cli/version_text.h"

#include "base/version.h"

namespace mnist_train::cli {

std::string version_text() {
  const BuildInfo& build = build_info();
  std::string text = std::string("mnist-train ") + build.version;
  const auto add = [&text](const char* name, const char* value) {
    text += std::string(", ") + name + ' ' + (*value == '\0' ? "none" : value);
  };
  add("commit", build.commit);
  add("LibTorch", build.torch);
  add("CUDA", build.cuda);
  add("NCCL", build.nccl);
  add("DALI", build.dali);
  add("compiler", build.compiler);
  return text;
}

}  // namespace mnist_train::cli
