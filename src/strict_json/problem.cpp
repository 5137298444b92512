#include "strict_json/problem.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "strict_json/text_scan.h"

namespace mnist_train::strict_json {

namespace {

/// Keeps the problem on one line: keys and values come from anyone, and must not forge lines.
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
  std::vector<std::shared_ptr<const Source>> sources;  // in the order of their first problems
  std::set<std::tuple<std::size_t, std::size_t, std::string, std::string>> sorted;
  for (const Problem& problem : problems) {
    auto source = std::find(sources.begin(), sources.end(), problem.source);
    if (source == sources.end()) source = sources.insert(source, problem.source);
    const auto index = static_cast<std::size_t>(source - sources.begin());
    sorted.emplace(index, problem.offset, problem.pointer, problem.message);
  }
  std::vector<TextLocator> locators;
  for (const auto& source : sources) locators.emplace_back(source->text);
  std::string lines;
  for (const auto& [index, offset, pointer, message] : sorted) {
    if (!lines.empty()) lines += '\n';
    lines += format_at({sources[index], offset, pointer, message}, locators[index]);
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
