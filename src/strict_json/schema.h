#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "strict_json/document.h"

namespace mnist_train::strict_json {

/// Determines which comparisons of two configs include a key.
enum class KeyUse {
  kSteps,            // changes the computation of a training step
  kSamples,          // changes the set of samples or their storage
  kStepsAndSamples,  // both
  kNever,
};

/// A key that must have a certain value for another key of the same group to have an effect.
struct KeyOwner {
  std::string key{};  // "": no owner; the key always has an effect
  std::string value{};
  bool is_any_other = false;  // has an effect with any value except `value`
  /// Noun for `value`, such as "model", in the error if the owner is not set to it; "": no error.
  std::string noun{};
};

/// Attributes that only a few keys have.
struct KeyTraits {
  bool required = false;  // an object without the key is invalid
  /// Keys of the same group that are dropped from lower layers if a layer sets this key.
  std::vector<std::string> drops{};
  KeyOwner owner{};
};
inline const KeyTraits kRequired{.required = true};

/// A config key and its properties.
struct KnownKey {
  std::string group;  // pointer to the object that contains it, "" for the top level
  std::string name;
  KeyUse use = KeyUse::kSteps;
  KeyTraits traits{};
  Json fragment{};  // JSON Schema of its value
};

/// Returns the name that `given` probably means, ignoring case, spaces, '-' and '_': one that
/// contains it, differs by at most two edits, makes up at least half of it, or has these initials.
std::optional<std::string> closest_name(std::string_view given,
                                        const std::vector<std::string>& names);

/// The message for an unknown key, and pointers to the keys that it suggests.
struct Explanation {
  std::string message;
  std::vector<std::string> hints{};
};

/// Explains an unknown key by a suggestion (`unknown key "lr"; did you mean "learning_rate"?`), the
/// group that it belongs to, or the valid keys of `group`. `inner` is the first key of its value if
/// that is an object, otherwise "".
Explanation explain_unknown_key(std::string_view key, std::string_view group,
                                const std::vector<KnownKey>& keys, std::string_view inner = "");

/// State shared by all cursors over one document.
struct ReadContext {
  Problems& problems;
  const std::vector<KnownKey>& keys;  // for suggestions
  bool is_layer = false;  // one of multiple layers: required keys, rules and checks are ignored
  /// Pointers to keys whose intended values are unknown: their values were rejected, or an unknown
  /// key may mean them. Rules and checks do not report mistakes that depend on these values.
  std::set<std::string> unclear{};
};

/// A value that is being read: its node and pointer, and the list for errors about it.
class JsonCursor {
 public:
  JsonCursor(const Node& node, std::string pointer, ReadContext& context)
      : node_(&node), pointer_(std::move(pointer)), context_(&context) {}

  const Node& node() const { return *node_; }
  const Json& value() const { return node_->value; }
  bool is_layer() const { return context_->is_layer; }

  /// Returns a cursor at an item of this list.
  JsonCursor item(std::size_t index) const {
    return {node_->items[index], join_pointer(pointer_, std::to_string(index)), *context_};
  }
  /// Returns a cursor at the value of a key, which this object must contain.
  JsonCursor member(std::string_view key) const {
    return {*node_->find(key), join_pointer(pointer_, std::string(key)), *context_};
  }
  JsonCursor member(const Node::Member& each) const {
    return {each.value, join_pointer(pointer_, each.key), *context_};
  }
  /// Returns a cursor at another node in place of this value.
  JsonCursor at(const Node& node) const { return {node, pointer_, *context_}; }
  bool has(std::string_view key) const { return node_->find(key) != nullptr; }
  /// Returns whether this value was rejected or, at a missing key, an unknown key may mean it.
  bool is_unclear() const { return node_->is_broken || context_->unclear.contains(pointer_); }
  bool is_unclear(const std::string& key) const {
    return has(key) ? member(key).is_unclear()
                    : context_->unclear.contains(join_pointer(pointer_, key));
  }
  /// Calls `read`, which reads this value, and notes whether it was rejected. The keys of an object
  /// are noted one by one instead.
  template <class Read>
  void note_if_rejected(const Read& read) const {
    const std::size_t before = context_->problems.size();
    read();
    const bool is_rejected = context_->problems.size() > before && !value().is_object();
    if (is_rejected) context_->unclear.insert(pointer_);
  }
  /// Returns whether this object contains the key with a value other than null.
  bool has_value(std::string_view key) const {
    return has(key) && !node_->find(key)->value.is_null();
  }

  /// Returns a copy whose error messages list one more alternative, such as "null" or "\"auto\"".
  JsonCursor or_else(std::string_view alternative) const {
    JsonCursor same = *this;
    same.alternatives_ += " or " + std::string(alternative);
    return same;
  }

  // Functions that add an error return nullopt, which readers then return as well.

  /// Adds an error about this value, unless it is broken.
  std::nullopt_t add_error(std::string message) const;
  /// Adds an error about the value of a key, or of a key in a group ("data/split"); about the group
  /// if it does not contain the key.
  std::nullopt_t add_error_at(std::string_view path, std::string message) const;
  /// Adds the error `expected …, found …`, followed by a hint.
  std::nullopt_t add_mismatch(const std::string& expected, const std::string& hint = "") const;
  /// Adds the error that this value is not an object with the keys `known`. If it is a name that
  /// one of these keys accepts, the error shows how to write it.
  std::nullopt_t add_not_an_object(const std::vector<KnownKey>& known) const;
  /// Adds an error for each key of this object that is not in `known`.
  void add_unknown_keys(const std::vector<KnownKey>& known) const;

 private:
  const Node* node_;
  std::string pointer_;
  ReadContext* context_;
  std::string alternatives_;
};

/// How a kind of value is read, written and described.
template <class T>
struct Type {
  std::function<std::optional<T>(const JsonCursor&)> read{};  // nullopt if an error was added
  std::function<Json(const T&)> write = [](const T& value) { return Json(value); };
  Json fragment{};               // JSON Schema of the value
  std::vector<KnownKey> keys{};  // of an object; groups are relative to it
};

/// Returns the type of booleans.
Type<bool> boolean();

/// Returns the type of integers from `min` to `max`.
Type<std::int64_t> integer(std::int64_t min, std::int64_t max);

/// Numbers from `min` to `max`.
struct NumberRange {
  double min = 0;
  double max = 0;
  bool above_min = false;  // excludes `min` itself
  bool below_max = false;  // excludes `max` itself
};

/// Returns the type of numbers in the range.
Type<double> number(const NumberRange& range);

/// Returns the type of paths. They are made absolute: relative paths are resolved against the base
/// folder of their source, and `~/` is expanded to the user's home folder.
Type<std::filesystem::path> path();

/// Returns the type of file names in the run folder: relative, without `.` and `..`, and matching
/// `pattern` as a whole; `extra` describes the pattern in messages.
Type<std::string> file_name(const std::string& pattern = ".+", const std::string& extra = "");

/// Returns the type of short strings that contain a match of a regular expression (ECMAScript);
/// `expected` completes the message "expected …".
Type<std::string> text(const std::string& pattern, const std::string& expected);

/// Returns the index of the cursor's string in `names`, or adds an error with a suggestion.
std::optional<std::size_t> choose_name(const JsonCursor& cursor,
                                       const std::vector<std::string>& names);

/// Returns the number as JSON, without a fraction if it is an integer.
Json number_to_json(double value);

/// Returns the type of an enum whose values count from 0; `names` are their names in order.
template <class E>
Type<E> one_of(const std::vector<std::string>& names) {
  return {.read = [names](const JsonCursor& cursor) -> std::optional<E> {
            const std::optional<std::size_t> index = choose_name(cursor, names);
            if (!index) return std::nullopt;
            return static_cast<E>(*index);
          },
          .write = [names](const E& value) -> Json {
            return names.at(static_cast<std::size_t>(value));
          },
          .fragment = {{"enum", names}}};
}

/// Returns the type of optional `inner` values. Null and `none`, which may be another value, such
/// as "auto", are read as nullopt; nullopt is written as `none`.
template <class T>
Type<std::optional<T>> optional_of(const Type<T>& inner, const Json& none = nullptr) {
  Json choices = Json::array({inner.fragment});
  if (!none.is_null()) choices.push_back({{"const", none}});
  choices.push_back({{"type", "null"}});
  return {
      .read = [inner, none](const JsonCursor& cursor) -> std::optional<std::optional<T>> {
        const Json& given = cursor.value();
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

/// Returns the type of lists of `min` to `max` values, shown as `form` in messages.
template <class T>
Type<std::vector<T>> list_of(const Type<T>& inner, const std::string& form = "a list",
                             std::size_t min = 0, std::size_t max = SIZE_MAX) {
  Json fragment = {{"type", "array"}, {"items", inner.fragment}};
  if (min > 0) fragment["minItems"] = min;
  if (max < SIZE_MAX) fragment["maxItems"] = max;
  return {.read = [=](const JsonCursor& cursor) -> std::optional<std::vector<T>> {
            std::vector<T> values;
            const std::size_t size = cursor.node().items.size();
            if (!cursor.value().is_array() || size < min || size > max) {
              return cursor.add_mismatch(form);
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

/// Returns the type of `inner` converted to another C++ type by `to`, and back by `from`.
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

/// Returns the type of values with two forms: `brief`, a scalar, and `full`, a list or an object,
/// shown as `form` in messages. Values for which `is_brief` holds are written in the brief form.
template <class T, class IsBrief>
Type<T> brief_or_full(const Type<T>& brief, const Type<T>& full, const std::string& form,
                      IsBrief is_brief) {
  return {.read = [brief, full, form](const JsonCursor& cursor) -> std::optional<T> {
            const bool is_full = full.fragment.at("type") == cursor.value().type_name();
            return is_full ? full.read(cursor) : brief.read(cursor.or_else(form));
          },
          .write = [brief, full, is_brief](
                       const T& value) { return (is_brief(value) ? brief : full).write(value); },
          .fragment = {{"anyOf", {brief.fragment, full.fragment}}},
          .keys = full.keys};
}

/// Returns the type of a list of `inner`; a single value is shorthand for a list of `times` copies.
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

/// A rule that involves multiple keys of an object: a condition that the object must not meet.
/// Editors evaluate the condition as JSON Schema, and the program evaluates the same JSON with
/// `matches`, so the two cannot differ.
struct Rule {
  std::string key;      // the key named in errors; "data/split" for a key in a group
  Json forbidden;       // a condition, built by the functions below
  std::string message;  // the predicate of a sentence about the key: "conflicts with train"
};

/// The condition that the object contains the key with a value that meets `condition`.
Json holds(const std::string& key, const Json& condition);

/// The condition that the object contains the key with a value other than null.
Json given(const std::string& key);

/// The condition that the object contains the key with this value.
Json equal(const std::string& key, const Json& value);

/// The condition that the object contains the key with a list that has an item meeting `condition`.
Json has_item(const std::string& key, const Json& condition);

Json none_of(const Json& condition);
Json all_of(const std::vector<Json>& conditions);
Json any_of(const std::vector<Json>& conditions);

/// Returns whether a value meets a condition, or `if_unclear` if that depends on unclear values.
/// Throws std::logic_error for JSON Schema keywords that the functions above do not use.
bool matches(const Json& condition, const JsonCursor& value, bool if_unclear = false);

/// A key of a group, with functions that read it into the group's struct and write it back.
template <class Owner>
struct Field {
  KnownKey key;
  std::string doc;  // for the JSON Schema and the tables of configs/README.md
  std::function<void(Owner&, const JsonCursor&)> read;
  std::function<std::optional<Json>(const Owner&)> write;  // nullopt if the key is not written
  std::vector<KnownKey> nested{};
};

/// The table of a group's keys, in the order in which they are written. A single definition
/// validates and reads the group into the struct, writes it back and describes it as JSON Schema.
///
///     Schema<TrainOptions> schema;
///     ADD_KEY(schema, epochs, integer(1, 1000), "Passes over the data.");
///     schema.conflict("batch_size_per_process", "batch_size");
template <class Owner>
class Schema {
 public:
  using Options = Owner;
  using Check = std::function<void(Owner&, const JsonCursor&)>;

  Schema() = default;
  /// `omits_defaults`: optional keys that have their default value are not written.
  explicit Schema(Owner defaults, bool omits_defaults = false)
      : defaults_(std::move(defaults)), omits_defaults_(omits_defaults) {}

  /// Adds a key that is stored in a member.
  template <class T>
  void add(std::string name, T Owner::*member, KeyUse use, const Type<T>& type, std::string doc,
           KeyTraits traits = {}) {
    add({{"", std::move(name), use, std::move(traits), type.fragment},
         std::move(doc),
         [member, read = type.read](Owner& owner, const JsonCursor& cursor) {
           if (std::optional<T> value = read(cursor)) owner.*member = std::move(*value);
         },
         [member, write = type.write](const Owner& owner) { return write(owner.*member); },
         type.keys});
    const KnownKey& added = fields_.back().key;
    const KeyOwner& owner = added.traits.owner;
    if (owner.noun.empty()) return;
    forbid(added.name, {given(added.name), none_of(equal(owner.key, owner.value))},
           "is only for " + owner.noun + " " + owner.value);
  }
  template <class T>
  void add(std::string name, T Owner::*member, const Type<T>& type, std::string doc,
           KeyTraits traits = {}) {
    add(std::move(name), member, KeyUse::kSteps, type, std::move(doc), std::move(traits));
  }
  void add(Field<Owner> field) { fields_.push_back(std::move(field)); }

  /// Adds the required key "name", whose value selects this table.
  void add_name(const std::string& name) {
    const auto read = [](Owner&, const JsonCursor&) {};
    const auto write = [name](const Owner&) -> std::optional<Json> { return name; };
    add({{"", "name", KeyUse::kSteps, kRequired, {{"const", name}}}, "The kind.", read, write});
  }

  /// Writes the most recently added key only if the condition holds.
  void write_only_if(std::function<bool(const Owner&)> condition) {
    auto& write = fields_.back().write;
    write = [write, condition = std::move(condition)](const Owner& owner) {
      return condition(owner) ? write(owner) : std::nullopt;
    };
  }

  /// Adds the keys, rules and checks of `part`, the schema of a part of the owner. `member` is a
  /// pointer to that part or a function that returns it.
  template <class Member, class Part>
  void include(Member member, const Schema<Part>& part) {
    for (const Field<Part>& field : part.fields_) {
      add({field.key, field.doc,
           [member, read = field.read](Owner& owner, const JsonCursor& cursor) {
             read(std::invoke(member, owner), cursor);
           },
           [member, write = field.write](const Owner& owner) {
             return write(std::invoke(member, owner));
           },
           field.nested});
    }
    rules_.insert(rules_.end(), part.rules_.begin(), part.rules_.end());
    for (const auto& each : part.checks_) {
      check([member, each](Owner& owner, const JsonCursor& at) {
        each(std::invoke(member, owner), at);
      });
    }
  }

  /// Rejects objects that meet all conditions, in the program and in the JSON Schema.
  void forbid(std::string key, std::initializer_list<Json> conditions, std::string message) {
    rules_.push_back({std::move(key),
                      conditions.size() == 1 ? *conditions.begin() : all_of(conditions),
                      std::move(message)});
  }

  /// Rejects objects that set both keys; the error names `key`.
  void conflict(const std::string& key, const std::string& other) {
    forbid(key, {given(key), given(other)}, "conflicts with " + other + "; set only one of them");
  }

  /// Adds a check that JSON Schema cannot express; it runs after reading and may change the struct.
  void check(Check each) { checks_.push_back(std::move(each)); }

  /// Reads an object; returns nullopt if the value is not one. Adds errors to the cursor's list; a
  /// key that cannot be read keeps its default.
  std::optional<Owner> read(const JsonCursor& cursor) const {
    if (!cursor.value().is_object()) return cursor.add_not_an_object(keys());
    Owner owner = defaults_;
    if (!std::ranges::all_of(cursor.node().members, [this](const auto& m) { return has(m.key); })) {
      cursor.add_unknown_keys(keys());
    }
    for (const Field<Owner>& field : fields_) {
      const std::string& name = field.key.name;
      if (cursor.has(name)) {
        const JsonCursor at = cursor.member(name);
        at.note_if_rejected([&] { field.read(owner, at); });
      } else if (is_required(field) && !cursor.is_layer() && !cursor.is_unclear(name)) {
        cursor.add_error("needs \"" + name + '"');
      }
    }
    if (cursor.is_layer()) return owner;
    for (const Rule& rule : rules_) {
      if (matches(rule.forbidden, cursor)) cursor.add_error_at(rule.key, rule.message);
    }
    for (const Check& each : checks_) each(owner, cursor);
    return owner;
  }

  /// Writes the object, omitting keys whose owner must have a certain value but has another. Owners
  /// must come before the keys they own.
  Json write(const Owner& owner) const { return write(owner, omits_defaults_); }

  /// Returns the JSON Schema of the object.
  Json describe() const {
    const Json defaults = write(defaults_, /*omits_defaults=*/false);
    Json properties = Json::object();
    Json required = Json::array();
    for (const Field<Owner>& field : fields_) {
      const std::string& name = field.key.name;
      Json& property = properties[name];
      property["description"] = field.doc;
      property.update(field.key.fragment);
      if (is_required(field)) {
        required.push_back(name);
      } else if (defaults.contains(name)) {
        property["default"] = defaults.at(name);
      }
    }
    Json described = {
        {"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
    if (!required.empty()) described["required"] = std::move(required);
    for (const Rule& rule : rules_) {
      const std::string text = (rule.key.empty() ? "" : rule.key + ": ") + rule.message;
      described["allOf"].push_back({{"description", text}, {"not", rule.forbidden}});
    }
    return described;
  }

  /// Returns the keys, including those of nested groups.
  std::vector<KnownKey> keys() const {
    std::vector<KnownKey> keys;
    for (const Field<Owner>& field : fields_) {
      keys.push_back(field.key);
      for (KnownKey inner : field.nested) {
        inner.group.insert(0, join_pointer("", field.key.name));
        keys.push_back(std::move(inner));
      }
    }
    return keys;
  }

 private:
  template <class Other>
  friend class Schema;

  static bool is_required(const Field<Owner>& field) { return field.key.traits.required; }

  bool has(const std::string& name) const {
    return std::ranges::any_of(fields_, [&](const auto& field) { return field.key.name == name; });
  }

  Json write(const Owner& owner, bool omits_defaults) const {
    Json object = Json::object();
    for (const Field<Owner>& field : fields_) {
      const auto& [key, value, is_any_other, noun] = field.key.traits.owner;
      const bool has_owner = object.contains(key) && object.at(key) == value;
      if (!key.empty() && !is_any_other && !has_owner) continue;
      std::optional<Json> written = field.write(owner);
      const bool is_left_out =
          omits_defaults && !is_required(field) && written == field.write(defaults_);
      if (written && !is_left_out) object[field.key.name] = std::move(*written);
    }
    return object;
  }

  Owner defaults_{};
  bool omits_defaults_ = false;
  std::vector<Field<Owner>> fields_;
  std::vector<Rule> rules_;
  std::vector<Check> checks_;
};

/// Adds a key that has the name of the member in which it is stored. `...` are the remaining
/// arguments of `Schema::add`.
#define ADD_KEY(schema, member, ...) \
  (schema).add(#member, &std::remove_cvref_t<decltype(schema)>::Options::member, __VA_ARGS__)

/// Returns the type of an object described by a table.
template <class T>
Type<T> group(Schema<T> schema) {
  const auto shared = std::make_shared<const Schema<T>>(std::move(schema));
  return {.read = [shared](const JsonCursor& cursor) { return shared->read(cursor); },
          .write = [shared](const T& value) { return shared->write(value); },
          .fragment = shared->describe(),
          .keys = shared->keys()};
}

/// One kind of object among several that are distinguished by the key "name".
template <class Union>
struct Alternative {
  std::string name;
  Schema<Union> schema;                          // starts with `add_name`
  std::function<bool(const Union&)> is_of_kind;  // whether the union contains this kind
};

/// Returns the type of an object of one of these kinds. A bare name means one without other keys.
template <class Union>
Type<Union> named_union(std::vector<Alternative<Union>> kinds) {
  std::vector<std::string> names;
  Json bare = Json::array();
  Json choices = Json::array();
  for (const Alternative<Union>& row : kinds) {
    names.push_back(row.name);
    choices.push_back(row.schema.describe());
    if (choices.back().at("required").size() == 1) bare.push_back(row.name);
  }
  if (!bare.empty()) choices.push_back({{"enum", bare}});
  const auto rows = std::make_shared<const std::vector<Alternative<Union>>>(std::move(kinds));
  return {.read = [rows, names](const JsonCursor& cursor) -> std::optional<Union> {
            const bool is_object = cursor.value().is_object();
            if (is_object && !cursor.has("name")) return cursor.add_error("needs \"name\"");
            const auto index = choose_name(
                is_object ? cursor.member("name") : cursor.or_else("an object with a name"), names);
            if (!index) return std::nullopt;
            const Alternative<Union>& row = (*rows)[*index];
            if (is_object) return row.schema.read(cursor);
            Node object = node_at(cursor.node().source, cursor.node().offset);
            object.members.push_back({"name", object.offset, cursor.node()});
            return row.schema.read(cursor.at(object));
          },
          .write = [rows](const Union& value) -> Json {
            const auto is_its = [&](const auto& row) { return row.is_of_kind(value); };
            return std::ranges::find_if(*rows, is_its)->schema.write(value);
          },
          .fragment = {{"anyOf", choices}}};
}

}  // namespace mnist_train::strict_json
