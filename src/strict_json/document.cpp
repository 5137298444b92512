#include "strict_json/document.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "strict_json/text_scan.h"
#include "strict_json/tree_builder.h"

namespace mnist_train::strict_json {

namespace {

constexpr std::size_t kMaxStandIns = 16;

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
  // The parser gives up at NaN, and at a number like 1e999, whose range others check.
  std::string seen = text;
  StandIns stand_ins;
  while (true) {
    TreeBuilder builder(source, begin, first, stand_ins);
    const bool is_json = nlohmann::json::sax_parse(
        seen.begin() + static_cast<std::ptrdiff_t>(begin), seen.end(), &builder);
    if (builder.stopped_at() && stand_ins.size() < kMaxStandIns) {
      const SyntaxError& error = *builder.stopped_at();
      seen.replace(error.value->offset, error.value->size,
                   "0" + std::string(error.value->size - 1, ' '));
      stand_ins[error.value->offset] = {error.value->size, error.is_overflow};
      if (!error.is_overflow) problems.push_back(std::move(builder.problems().back()));
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

}  // namespace mnist_train::strict_json
