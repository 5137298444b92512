#include "strict_json/problem.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "strict_json/text_scan.h"

namespace mnist_train::strict_json {

namespace {

/// Keys and values come from anyone: they must not forge lines.
std::string format_at(const Problem& problem, TextLocator& locator) {
  const TextPosition position = locator.locate(problem.offset);
  const std::string pointer = problem.pointer.empty() ? "/" : problem.pointer;
  return on_one_line(problem.source->name + ":" + std::to_string(position.line) + ":" +
                     std::to_string(position.column) + ": " + pointer + ": " + problem.message);
}

}  // namespace

std::string format_problem(const Problem& problem) {
  TextLocator locator(problem.source->text);
  return format_at(problem, locator);
}

void throw_if_any(const Problems& problems) {
  if (problems.empty()) return;
  std::vector<std::shared_ptr<const Source>> sources;
  for (const Problem& problem : problems) {
    if (std::find(sources.begin(), sources.end(), problem.source) == sources.end()) {
      sources.push_back(problem.source);
    }
  }
  std::string lines;
  for (const auto& source : sources) {
    std::vector<const Problem*> here;
    for (const Problem& problem : problems) {
      if (problem.source == source) here.push_back(&problem);
    }
    const auto key = [](const Problem* problem) {
      return std::tie(problem->offset, problem->pointer, problem->message);
    };
    std::sort(here.begin(), here.end(),
              [&](const Problem* left, const Problem* right) { return key(left) < key(right); });
    here.erase(std::unique(here.begin(), here.end(),
                           [&](const Problem* left, const Problem* right) {
                             return key(left) == key(right);
                           }),
               here.end());
    TextLocator locator(source->text);
    for (const Problem* problem : here) {
      if (!lines.empty()) lines += '\n';
      lines += format_at(*problem, locator);
    }
  }
  throw Error(ExitCode::kConfig, lines);
}

std::string join_pointer(const std::string& pointer, const std::string& key) {
  std::string joined = pointer + '/';
  for (const char character : shorten(key)) {
    if (character == '~') {
      joined += "~0";
    } else if (character == '/') {
      joined += "~1";
    } else {
      joined += character;
    }
  }
  return joined;
}

}  // namespace mnist_train::strict_json
