#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strict_json/document.h"

namespace mnist_train::strict_json {

/// Which comparisons of two configs a key takes part in.
enum class KeyUse {
  kSteps,            // it changes the computation of a training step
  kSamples,          // it changes the set of samples, or their storage
  kStepsAndSamples,  // both
  kNever,
};

/// A key has a meaning only beside this value of another key of its group.
struct KeyOwner {
  std::string key{};  // "": it always has one
  std::string value{};
  bool is_any_other = false;  // beside all values but `value`
};

/// A key of the config and its properties.
struct KnownKey {
  std::string group;  // pointer of the object that holds it, "" for the top level
  std::string name;
  std::vector<std::string> other_names{};  // in other programs, for suggestions
  KeyUse use = KeyUse::kSteps;
  /// Keys of the same group that a layer which gives this one drops from the layers below it.
  std::vector<std::string> drops{};
  KeyOwner owner{};
  /// A scalar value stands for an object with this key alone; true, if this is "", for {}.
  std::optional<std::string> shorthand_for{};
};

/// Returns the name that was probably meant: it differs from `given` by case, '-' and '_', or by at
/// most two edits.
std::optional<std::string> closest_name(std::string_view given,
                                        const std::vector<std::string>& names);

/// Returns `unknown key "lr"; did you mean "learning_rate"?`, or in which group the key is, or the
/// keys of `group`.
std::string explain_unknown_key(std::string_view key, std::string_view group,
                                const std::vector<KnownKey>& keys);

/// Names, each with the text that explains it.
using Explanations = std::vector<std::pair<std::string, std::string>>;

/// State shared by all cursors over one document.
struct ReadContext {
  Problems& problems;
  std::vector<KnownKey> keys;  // for suggestions
  bool is_layer = false;       // other layers complete the document: skip rules over several keys
};

/// A value that is being read: its node, its pointer, and the list for errors about it.
class JsonCursor {
 public:
  JsonCursor(const Node& node, std::string pointer, ReadContext& context)
      : node_(&node), pointer_(std::move(pointer)), context_(&context) {}

  const Node& node() const { return *node_; }
  bool is_layer() const { return context_->is_layer; }

  /// Returns a cursor at an item of this list.
  JsonCursor item(std::size_t index) const {
    return {node_->items[index], join_pointer(pointer_, std::to_string(index)), *context_};
  }
  /// Returns a cursor at the value of a key that this object has.
  JsonCursor member(std::string_view key) const {
    return {*node_->find(key), join_pointer(pointer_, std::string(key)), *context_};
  }
  bool has(std::string_view key) const { return node_->find(key) != nullptr; }
  /// Returns whether this object has the key, with a value other than null.
  bool gives(std::string_view key) const { return has(key) && !node_->find(key)->value.is_null(); }

  /// Returns a cursor at the same value whose error messages list one more alternative: "null",
  /// "\"auto\"".
  JsonCursor or_else(std::string_view alternative) const {
    JsonCursor same = *this;
    same.alternatives_ += " or " + std::string(alternative);
    return same;
  }

  /// Adds an error about this value, unless it is broken.
  void add_error(std::string message) const;
  /// Adds an error about the value of a key, or of one in a group ("data/split"); about the group
  /// if it does not have the key.
  void add_error_at(std::string_view path, std::string message) const;
  /// Adds the error `expected …, found …`, followed by a hint.
  void add_mismatch(const std::string& expected, const std::string& hint = "") const;
  /// Returns the end of a message: how to give this text as the value of a key of an object.
  std::string suggest_member(const std::string& key) const;
  /// Adds an error for each key of this object that is not among `own`. `absent` explains keys that
  /// users may expect.
  void add_unknown_keys(const std::vector<KnownKey>& own, const Explanations& absent = {}) const;

 private:
  const Node* node_;
  std::string pointer_;
  ReadContext* context_;
  std::string alternatives_;
};

/// Returns whether the node is a string that a JSON Schema lists in its "enum".
bool takes_name(const Json& fragment, const Node& node);

/// Returns the value for messages: `1.5`, `the string "ten"`, `a list`.
std::string describe(const Node& node);

/// How one kind of value is read, written and described.
template <class T>
struct Type {
  std::function<std::optional<T>(const JsonCursor&)> read{};  // nothing: an error was added
  std::function<Json(const T&)> write{};
  Json fragment{};               // the JSON Schema of the value
  std::vector<KnownKey> keys{};  // of an object; their groups are relative to it
};

/// Returns the type of `true` and `false`.
Type<bool> boolean();

/// Returns the type of integers from `min` to `max`, written without fraction and exponent.
Type<std::int64_t> integer(std::int64_t min, std::int64_t max);

/// The numbers from `min` to `max`.
struct NumberRange {
  double min = 0;
  double max = 0;
  bool above_min = false;  // without `min` itself
  bool below_max = false;  // without `max` itself
};

/// Returns the type of numbers in the range.
Type<double> number(const NumberRange& range);

/// Returns the text of a string. In a --set, other values count as text too, as they were typed: a
/// folder may be called 2024 or true. Nothing for other values in a file.
std::optional<std::string> text_of(const Node& node);

/// Returns the type of paths. They become absolute: relative ones start at the base folder of their
/// source, those that begin with `~/` at the user's home folder.
Type<std::filesystem::path> path();

/// Returns the type of names of files in the run folder: relative, without `.` and `..`.
Type<std::string> file_name();

/// Returns the type of short strings that contain a match of a regular expression (ECMAScript);
/// `expected` completes the message "expected …".
Type<std::string> text(const std::string& pattern, const std::string& expected);

/// Returns the index of the cursor's text among `names`; otherwise adds an error that suggests one.
/// `meant` maps names in other programs to the one to suggest.
std::optional<std::size_t> choose_name(
    const JsonCursor& cursor, const std::vector<std::string>& names,
    const std::vector<std::pair<std::string, std::string>>& meant = {});

/// Returns the value as JSON without positions.
Json to_json(const Node& node);

/// Returns the number as JSON, without a fraction if it has none.
Json number_to_json(double value);

/// Returns the type of an enum that counts from 0, with the names of its values in order. `meant`
/// maps names in other programs to the one to suggest.
template <class E>
Type<E> one_of(const std::vector<std::string>& names,
               const std::vector<std::pair<std::string, std::string>>& meant = {}) {
  return {.read = [names, meant](const JsonCursor& cursor) -> std::optional<E> {
            const std::optional<std::size_t> index = choose_name(cursor, names, meant);
            if (!index) return std::nullopt;
            return static_cast<E>(*index);
          },
          .write = [names](const E& value) -> Json {
            return names.at(static_cast<std::size_t>(value));
          },
          .fragment = {{"enum", names}}};
}

/// Returns the type of `inner` or null, which is read as nothing. If `none` is another JSON value,
/// such as "auto", it is accepted as well, and written for nothing.
template <class T>
Type<std::optional<T>> optional_of(const Type<T>& inner, const Json& none = nullptr) {
  Json choices = Json::array({inner.fragment});
  if (!none.is_null()) choices.push_back({{"const", none}});
  choices.push_back({{"type", "null"}});
  return {
      .read = [inner, none](const JsonCursor& cursor) -> std::optional<std::optional<T>> {
        const Json& given = cursor.node().value;
        if (given.is_null() || (none.is_string() && given == none)) return std::optional<T>();
        std::optional<T> value = inner.read(cursor.or_else(none.dump()));
        if (!value) return std::nullopt;
        return std::optional<std::optional<T>>(std::in_place, std::move(*value));
      },
      .write = [inner,
                none](const std::optional<T>& value) { return value ? inner.write(*value) : none; },
      .fragment = {{"anyOf", choices}},
      .keys = inner.keys};
}

/// Returns the type of lists of `min` to `max` values, which messages show as `form`.
template <class T>
Type<std::vector<T>> list_of(const Type<T>& inner, const std::string& form = "a list",
                             std::size_t min = 0, std::size_t max = SIZE_MAX) {
  Json fragment = {{"type", "array"}, {"items", inner.fragment}};
  if (min > 0) fragment["minItems"] = min;
  if (max < SIZE_MAX) fragment["maxItems"] = max;
  return {.read = [=](const JsonCursor& cursor) -> std::optional<std::vector<T>> {
            std::vector<T> values;
            const std::size_t size = cursor.node().items.size();
            if (!cursor.node().value.is_array() || size < min || size > max) {
              cursor.add_mismatch(form);
              return std::nullopt;
            }
            for (std::size_t index = 0; index < size; ++index) {
              std::optional<T> value = inner.read(cursor.item(index));
              if (value) values.push_back(std::move(*value));
            }
            if (values.size() < size) return std::nullopt;
            return values;
          },
          .write =
              [inner](const std::vector<T>& values) {
                Json list = Json::array();
                for (const T& value : values) list.push_back(inner.write(value));
                return list;
              },
          .fragment = std::move(fragment)};
}

/// Returns the type of `inner` as another C++ type; `to` and `from` convert between the two.
template <class T, class Inner, class To, class From>
Type<T> converted(const Type<Inner>& inner, const To& to, const From& from) {
  return {.read = [read = inner.read, to](const JsonCursor& cursor) -> std::optional<T> {
            std::optional<Inner> value = read(cursor);
            if (!value) return std::nullopt;
            return to(std::move(*value));
          },
          .write = [write = inner.write, from](const T& value) { return write(from(value)); },
          .fragment = inner.fragment,
          .keys = inner.keys};
}

/// Returns the type of values that have two forms: `brief`, a scalar, and `full`, a list or an
/// object, which messages show as `form`. Values that `is_brief` accepts are written briefly.
template <class T, class IsBrief>
Type<T> brief_or_full(const Type<T>& brief, const Type<T>& full, const std::string& form,
                      IsBrief is_brief) {
  return {.read = [brief, full, form](const JsonCursor& cursor) -> std::optional<T> {
            const bool is_full = full.fragment.at("type") == cursor.node().value.type_name();
            return is_full ? full.read(cursor) : brief.read(cursor.or_else(form));
          },
          .write = [brief, full, is_brief](
                       const T& value) { return (is_brief(value) ? brief : full).write(value); },
          .fragment = {{"anyOf", {brief.fragment, full.fragment}}},
          .keys = full.keys};
}

/// Returns the type of a list of `inner` for which one value may stand, `times` times.
template <class T>
Type<std::vector<T>> one_or_list(const Type<T>& inner, const Type<std::vector<T>>& list,
                                 const std::string& form, std::size_t times = 1) {
  using List = std::vector<T>;
  const auto one = converted<List>(
      inner, [times](const T& value) { return List(times, value); },
      [](const List& values) { return values.front(); });
  return brief_or_full(one, list, form, [times](const List& values) {
    return values.size() == times &&
           std::ranges::count(values, values.front()) == std::ssize(values);
  });
}

}  // namespace mnist_train::strict_json
