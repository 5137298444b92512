#include "cli/output_file.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "report/run_folder.h"

namespace mnist_train::cli {

namespace fs = std::filesystem;

namespace {

struct FileKind {
  std::string_view writer;  // the command that writes such files; "": none does
  std::vector<std::string_view> extensions;
};

const std::vector<FileKind>& file_kinds() {
  static const std::vector<FileKind> kinds{
      {"export --format pt", {".pt", ".pth"}},
      {"export --format safetensors", {".safetensors"}},
      {"export --format onnx", {".onnx"}},
      {"export --format python", {".py"}},
      {"preview", {".png"}},
      {"report", {".html", ".htm"}},
      {"", {".json", ".jsonl", ".bin", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".gz", ".zip"}}};
  return kinds;
}

std::string writer_of(const CommandLine& line) {
  if (line.command == Command::kExport) return "export --format " + line.export_format;
  if (line.command == Command::kPreview) return "preview";
  return line.command == Command::kReport ? "report" : "";
}

}  // namespace

std::optional<std::string> misused_extension(const CommandLine& line) {
  const std::string writer = writer_of(line);
  if (writer.empty() || !line.output) return std::nullopt;
  std::string extension = fs::path(*line.output).extension();
  std::ranges::transform(extension, extension.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  const auto has_it = [&](const FileKind& kind) {
    return std::ranges::count(kind.extensions, extension) > 0;
  };
  const auto other = std::ranges::find_if(file_kinds(), has_it);
  if (other == file_kinds().end() || other->writer == writer) return std::nullopt;
  const auto own = std::ranges::find(file_kinds(), writer, &FileKind::writer);
  std::string text = fmt::format("--output {}: {} writes {} files", *line.output, writer,
                                 fmt::join(own->extensions, " or "));
  if (!other->writer.empty()) {
    text += fmt::format("; {} files are written by {}", extension, other->writer);
  }
  return text;
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
                                       ", which is never overwritten; choose another name");
  }
  const AtomicFile trial(path, ExitCode::kConfig);  // without commit nothing changes
}

}  // namespace mnist_train::cli
