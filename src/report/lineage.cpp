#include "report/lineage.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/system.h"

namespace mnist_train::report {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const RunStart& start, const Summary& summary) {
  Json json = {{"time", wall_clock_seconds()},
               {"host", start.host},
               {"resumed_from", start.resumed_from.empty() ? Json() : Json(start.resumed_from)},
               {"epoch", start.epoch},
               {"step", start.step},
               {"samples_seen", start.samples_seen},
               {"steps_per_epoch", start.steps_per_epoch},
               {"data",
                {{"train", start.train_images},
                 {"validation", start.validation_images},
                 {"test", start.test_images},
                 {"channels", start.image_channels},
                 {"height", start.image_height},
                 {"width", start.image_width},
                 {"classes", start.classes}}}};
  if (!start.class_names.empty()) json["data"]["class_names"] = start.class_names;
  json.update(identity_of(summary));
  return json;
}

[[noreturn]] void fail(const std::filesystem::path& path, const char* action) {
  throw_errno(ExitCode::kRunFailed, path, action);
}

}  // namespace

void LineageFile::begin(const RunStart& start, const Summary& summary) {
  const UniqueFd fd(
      ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644));
  struct stat status {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0) fail(path_, "open");
  // A line that a full disk cut short must not swallow this one.
  char last = '\n';
  if (status.st_size > 0 && ::pread(fd.get(), &last, 1, status.st_size - 1) != 1) {
    fail(path_, "read");
  }
  const std::string line =
      (last == '\n' ? "" : "\n") +
      to_json(start, summary).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (!write_all(fd.get(), line.data(), line.size())) fail(path_, "write");
}

}  // namespace mnist_train::report
