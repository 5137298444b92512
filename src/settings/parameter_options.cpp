#include <algorithm>

#include "base/error.h"
#include "base/glob.h"
#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

using Globs = std::vector<std::string>;

Type<double> factor() {
  Type<double> type = number({0, kMaxFloat, true});
  type.read = [read = type.read](const JsonCursor& cursor) -> std::optional<double> {
    const Json& value = cursor.node().value;
    if (!value.is_number() || value.get<double>() > 0) return read(cursor);
    cursor.add_mismatch("a number above 0", "; to freeze parameters set \"frozen\" to true");
    return std::nullopt;
  };
  return type;
}

/// Returns the type of one glob or several.
Type<Globs> globs() {
  const auto glob = strict_json::text(".", "a glob of parameter names");
  return one_or_list(glob, list_of(glob, "at least one glob", 1), R"(["conv1.*", "bn1.*"])");
}

}  // namespace

Type<std::vector<ParameterOptions>> parameter_list() {
  using Options = ParameterOptions;
  Schema<Options> schema;
  schema
      .add("match", &Options::match, globs(),
           "Names of parameters, as `describe` prints them, or globs of them, of which `*` matches "
           "dots, too.",
           {"name", "names", "params", "pattern"})
      .required = true;
  schema.add("learning_rate_factor", &Options::learning_rate_factor, optional_of(factor()),
             "Factor applied to the learning rate.",
             {"lr_factor", "lr_mult", "lr_multiplier", "lr_scale"});
  schema.add("weight_decay", &Options::weight_decay, optional_of(number({0, kMaxFloat})),
             "Replaces weight_decay.", {"wd", "l2"});
  schema.add("frozen", &Options::frozen, optional_of(boolean()),
             "true: they keep their values. Batch norm without a trained parameter uses and keeps "
             "its running statistics.",
             {"freeze", "fixed"});
  schema.forbid(
      "", none_of(any_of({given("learning_rate_factor"), given("weight_decay"), given("frozen")})),
      "needs \"learning_rate_factor\", \"weight_decay\" or \"frozen\"");
  return list_of(group(std::move(schema)));
}

std::vector<ParameterSettings> parameter_settings(const std::vector<ParameterOptions>& entries,
                                                  const std::vector<std::string>& names,
                                                  const std::set<std::string>& frozen) {
  std::vector<ParameterSettings> resolved;
  for (const std::string& name : names) resolved.push_back({1, {}, frozen.contains(name)});
  std::string errors;
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    const ParameterOptions& options = entries[entry];
    for (const std::string& glob : options.match) {
      bool is_used = false;
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (!matches_glob(glob, names[i])) continue;
        is_used = true;
        ParameterSettings& own = resolved[i];
        own.learning_rate_factor = options.learning_rate_factor.value_or(own.learning_rate_factor);
        if (options.weight_decay) own.weight_decay = options.weight_decay;
        own.frozen = options.frozen.value_or(own.frozen);
      }
      if (is_used) continue;
      errors += (errors.empty() ? "" : "\n") + ("/parameters/" + std::to_string(entry)) +
                "/match: " + unmatched_glob(glob, names);
    }
  }
  if (!errors.empty()) throw ConfigKeyError(errors);
  if (std::ranges::all_of(resolved, &ParameterSettings::frozen)) {
    throw ConfigKeyError(
        "/parameters: every parameter is frozen, so there is nothing to train; an entry with "
        "\"frozen\": false trains some");
  }
  return resolved;
}

}  // namespace mnist_train::settings
