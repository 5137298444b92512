#include "cli/output_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "base/file.h"
#include "report/run_folder.h"

namespace mnist_train::cli {

namespace fs = std::filesystem;

namespace {

struct KnownExtension {
  const char* extension;
  const char* writer;  // the command that writes such files; empty: none does
};

constexpr std::array kExtensions{KnownExtension{".pt", "export --format pt"},
                                 KnownExtension{".pth", "export --format pt"},
                                 KnownExtension{".safetensors", "export --format safetensors"},
                                 KnownExtension{".onnx", "export --format onnx"},
                                 KnownExtension{".py", "export --format python"},
                                 KnownExtension{".png", "preview"},
                                 KnownExtension{".html", "report"},
                                 KnownExtension{".htm", "report"},
                                 KnownExtension{".json", ""},
                                 KnownExtension{".jsonl", ""},
                                 KnownExtension{".bin", ""},
                                 KnownExtension{".jpg", ""},
                                 KnownExtension{".jpeg", ""},
                                 KnownExtension{".gif", ""},
                                 KnownExtension{".svg", ""},
                                 KnownExtension{".pdf", ""},
                                 KnownExtension{".gz", ""},
                                 KnownExtension{".zip", ""}};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text;
}

std::string writer_of(const CommandLine& line) {
  if (line.command == Command::kExport) return "export --format " + line.export_format;
  if (line.command == Command::kPreview) return "preview";
  return line.command == Command::kReport ? "report" : "";
}

std::string extensions_of(std::string_view writer) {
  std::string text;
  for (const KnownExtension& row : kExtensions) {
    if (row.writer == writer) text += (text.empty() ? "" : " or ") + std::string(row.extension);
  }
  return text;
}

}  // namespace

std::optional<std::string> misused_extension(const CommandLine& line) {
  const std::string writer = writer_of(line);
  if (writer.empty() || !line.output) return std::nullopt;
  const std::string extension = lower(fs::path(*line.output).extension());
  for (const KnownExtension& row : kExtensions) {
    if (extension != row.extension || row.writer == writer) continue;
    std::string text =
        fmt::format("--output {}: {} writes {} files", *line.output, writer, extensions_of(writer));
    const std::string other = row.writer;
    if (!other.empty()) text += fmt::format("; {} files are written by {}", extension, other);
    return text;
  }
  return std::nullopt;
}

void check_output_file(const fs::path& path) {
  if (path == "-") throw Error(ExitCode::kConfig, "--output -: expected the name of a file");
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    throw Error(ExitCode::kConfig, path.string() + ": is a folder; expected the name of a file");
  }
  if (const auto run = report::run_that_wrote(path)) {
    throw Error(ExitCode::kConfig, "--output " + path.string() + ": is a file of the run in " +
                                       run->string() +
                                       ", which is never overwritten; choose "
                                       "another name");
  }
  const AtomicFile trial(path, ExitCode::kConfig);  // goes again, and leaves what is there
}

}  // namespace mnist_train::cli
