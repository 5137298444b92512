/// NVRTC: programs with mnist-train's own kernels, recognised by EXPORT_KERNEL, are compiled by the
/// host compiler, with the grid emulation, into libraries for driver.cpp. Other kernels are no-ops.
#include <nvrtc.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/fake_gpu/device.h"
#include "support/fake_gpu/kernels.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/settings.h"

namespace mnist_train::fake_gpu {

namespace {

namespace fs = std::filesystem;

struct Program {
  std::string source;
  std::string image;
  std::string log;
};

Program& program_of(nvrtcProgram handle) { return *reinterpret_cast<Program*>(handle); }

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Runs the compiler without preloading the mock libraries. Returns whether it succeeded.
bool run_compiler(const std::string& source, const std::string& library, const std::string& log) {
  const std::vector<std::string> words{
      "/bin/sh",
      "-c",
      std::string(
          "unset LD_PRELOAD; exec " FAKE_GPU_COMPILER
          " -std=c++20 -O3 -march=native -shared -fPIC -fno-gnu-unique -w -I " FAKE_GPU_INCLUDE
          " -include support/fake_gpu/nvrtc_prologue.h -x c++ \"$0\" -o \"$1\" 2> \"$2\""),
      source,
      library,
      log};
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t compiler = 0;
  int status = 0;
  return ::posix_spawn(&compiler, "/bin/sh", nullptr, nullptr, arguments.data(), environ) == 0 &&
         ::waitpid(compiler, &status, 0) == compiler && status == 0;
}

nvrtcResult compile(Program& program) {
  std::string folder = (fs::temp_directory_path() / "fake_gpu.XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return NVRTC_ERROR_INTERNAL_ERROR;
  const fs::path source = fs::path(folder) / "kernels.cu";
  const fs::path library = fs::path(folder) / "kernels.so";
  const fs::path log = fs::path(folder) / "log";
  std::ofstream(source) << program.source;
  const bool compiled = run_compiler(source, library, log);
  program.log = read_file(log);
  const std::string bytes = read_file(library);
  fs::remove_all(folder);
  if (!compiled) {
    say("kernels failed to compile: ", program.log);
    return NVRTC_ERROR_COMPILATION;
  }
  const std::uint64_t size = bytes.size();
  program.image.assign(kImageMagic, sizeof kImageMagic);
  program.image.append(reinterpret_cast<const char*>(&size), sizeof size);
  program.image += bytes;
  return NVRTC_SUCCESS;
}

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = CUDART_VERSION / 1000;
  *minor = CUDART_VERSION % 1000 / 10;
  return NVRTC_SUCCESS;
}

const char* nvrtcGetErrorString(nvrtcResult result) {
  return result == NVRTC_ERROR_COMPILATION ? "compilation error" : "mock NVRTC error";
}

nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int* capabilities) {
  *capabilities = 10 * kComputeMajor + kComputeMinor;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* handle, const char* source, const char*, int,
                               const char* const*, const char* const*) {
  *handle = reinterpret_cast<nvrtcProgram>(new Program{source, {}, {}});
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* handle) {
  delete &program_of(*handle);
  *handle = nullptr;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram handle, int, const char* const*) {
  Program& program = program_of(handle);
  if (visible_devices().at(static_cast<std::size_t>(current_device())) ==
      settings().nvrtc_fails_device) {
    program.log = "FAKE_GPU_NVRTC_FAILS_DEVICE is set";
    return NVRTC_ERROR_COMPILATION;
  }
  if (program.source.find("EXPORT_KERNEL(") != std::string::npos) return compile(program);
  program.image = "kernels that do nothing";
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram handle, std::size_t* size) {
  *size = program_of(handle).image.size();
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram handle, char* image) {
  std::memcpy(image, program_of(handle).image.data(), program_of(handle).image.size());
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram handle, std::size_t* size) {
  return nvrtcGetCUBINSize(handle, size);
}

nvrtcResult nvrtcGetPTX(nvrtcProgram handle, char* image) { return nvrtcGetCUBIN(handle, image); }

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram handle, std::size_t* size) {
  *size = program_of(handle).log.size() + 1;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram handle, char* log) {
  std::strcpy(log, program_of(handle).log.c_str());
  return NVRTC_SUCCESS;
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
