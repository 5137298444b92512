#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>

namespace mnist_train {

/// nlohmann::ordered_map with an index of its keys. The original searches linearly, so it takes
/// minutes to read an object with 300,000 keys.
template <class Key, class T, class IgnoredLess = std::less<Key>,
          class Allocator = std::allocator<std::pair<const Key, T>>>
class IndexedMap : public nlohmann::ordered_map<Key, T, IgnoredLess, Allocator> {
  using Base = nlohmann::ordered_map<Key, T, IgnoredLess, Allocator>;

 public:
  using iterator = typename Base::iterator;
  using const_iterator = typename Base::const_iterator;
  using Base::Base;

  template <class SomeKey>
  iterator find(const SomeKey& key) {
    return this->begin() + position_of(key);
  }
  template <class SomeKey>
  const_iterator find(const SomeKey& key) const {
    return this->begin() + position_of(key);
  }

  template <class SomeKey>
  std::pair<iterator, bool> emplace(SomeKey&& key, T&& value) {
    const iterator found = find(key);
    if (found != this->end()) return {found, false};
    this->emplace_back(std::forward<SomeKey>(key), std::move(value));
    if (this->size() > kFewKeys && index_.size() + 1 == this->size()) {
      index_.emplace(this->back().first, index_.size());
    }
    return {std::prev(this->end()), true};
  }

  template <class SomeKey>
  T& operator[](SomeKey&& key) {
    return emplace(std::forward<SomeKey>(key), T{}).first->second;
  }

  template <class... Place>
  auto erase(Place&&... place) {
    index_.clear();
    return Base::erase(std::forward<Place>(place)...);
  }

 private:
  static constexpr std::size_t kFewKeys = 16;  // searched linearly

  template <class SomeKey>
  std::ptrdiff_t position_of(const SomeKey& key) const {
    if (this->size() <= kFewKeys) {
      return std::find_if(this->begin(), this->end(),
                          [&](const auto& entry) { return entry.first == key; }) -
             this->begin();
    }
    // Functions of the base class may have added keys.
    if (index_.size() != this->size()) {
      index_.clear();
      for (const auto& entry : *this) index_.emplace(entry.first, index_.size());
    }
    const auto found = index_.find(Key(key));
    return static_cast<std::ptrdiff_t>(found == index_.end() ? this->size() : found->second);
  }

  mutable std::unordered_map<Key, std::size_t> index_;  // key to position; empty until needed
};

/// JSON whose objects keep the order of their keys, like nlohmann::ordered_json, with fast lookup.
/// Use it for all ordered JSON that is read from files.
using OrderedJson = nlohmann::basic_json<IndexedMap>;

/// Returns the JSON key of a record's member: its name without the unit suffix "_s".
inline std::string record_key(std::string member) {
  if (member.ends_with("_s")) member.resize(member.size() - 2);
  return member;
}

#define MNIST_TRAIN_VISIT_MEMBER(member) field(mnist_train::record_key(#member), record.member);
/// Defines a record's function `visit`, which calls `field(key, member)` for each of these members
/// in order.
#define MNIST_TRAIN_VISIT(...)                                                       \
  template <class Record, class Field>                                               \
  static void visit(Record& record, const Field& field) {                            \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(MNIST_TRAIN_VISIT_MEMBER, __VA_ARGS__)) \
  }

/// Returns the JSON value as text, on one line unless `indent` is given. Bytes that are not UTF-8,
/// as in file names, become replacement characters.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace mnist_train
