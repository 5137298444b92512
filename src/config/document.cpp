#include "config/document.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "config/text_scan.h"
#include "config/tree_builder.h"

namespace mnist_train::config {

namespace {

constexpr std::size_t kMaxOverflows = 16;

}  // namespace

const Node* Node::find(std::string_view key) const {
  for (const Member& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

std::optional<Node> parse_document(const std::shared_ptr<const Source>& source, Problems& problems,
                                   std::size_t begin) {
  const std::string& text = source->text;
  const bool has_mark = std::string_view(text).substr(begin).starts_with(kByteOrderMark);
  const std::size_t first = begin + (has_mark ? kByteOrderMark.size() : 0);
  if (skip_whitespace(text, first) == text.size()) {
    problems.push_back({source, first, "", "the document is empty; expected a JSON object"});
    return std::nullopt;
  }
  // The parser gives up at a number like 1e999. It gets zeros instead, so that all else that is
  // wrong is found, too; the number itself is left to whoever checks its range.
  std::string seen = text;
  std::set<std::size_t> overflows;
  while (true) {
    TreeBuilder builder(source, begin, first, overflows);
    const bool is_json = nlohmann::json::sax_parse(
        seen.begin() + static_cast<std::ptrdiff_t>(begin), seen.end(), &builder);
    if (builder.overflow() && overflows.size() < kMaxOverflows) {
      const std::size_t offset = *builder.overflow();
      const std::size_t size = end_of_number(text, offset) - offset;
      seen.replace(offset, size, "0" + std::string(size - 1, ' '));
      overflows.insert(offset);
      continue;
    }
    std::optional<Node> document = is_json ? builder.finish() : std::nullopt;
    problems.insert(problems.end(), builder.problems().begin(), builder.problems().end());
    return document;
  }
}

Node merge(Node under, Node over) {
  if (under.kind != Node::Kind::kObject || over.kind != Node::Kind::kObject) return over;
  if (under.members.empty()) return over;
  for (Node::Member& member : over.members) {
    const auto same = std::find_if(under.members.begin(), under.members.end(),
                                   [&](const auto& other) { return other.key == member.key; });
    if (same == under.members.end()) {
      under.members.push_back(std::move(member));
    } else {
      same->key_offset = member.key_offset;
      same->value = merge(std::move(same->value), std::move(member.value));
    }
  }
  return under;
}

}  // namespace mnist_train::config
