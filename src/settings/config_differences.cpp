#include "settings/config_differences.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

namespace mnist_train::settings {

namespace {

/// Keys, and the beginnings of keys, that do not change what a step computes.
constexpr std::array<std::string_view, 24> kWithoutEffect{"epochs",
                                                          "max_steps",
                                                          "stop_at_accuracy",
                                                          "early_stopping",
                                                          "log_interval",
                                                          "test_batch_size",
                                                          "checkpoint",
                                                          "launch",
                                                          "report",
                                                          "output",
                                                          "model_file",
                                                          "accuracies_file",
                                                          "backend",
                                                          "cuda_graphs",
                                                          "gradient_averaging.strategy",
                                                          "gradient_averaging.bucket_mb",
                                                          "model.weights",
                                                          "data.root",
                                                          "data.train",
                                                          "data.test",
                                                          "data.train_per_process",
                                                          "data.decode",
                                                          "data.decode_threads",
                                                          "data.limit_test"};

/// Keys, and the beginnings of keys, that decide which samples there are and what is in them.
constexpr std::array<std::string_view, 14> kOfSamples{
    "data.dataset",       "data.root",     "data.format",
    "data.train",         "data.test",     "data.train_per_process",
    "data.on_bad_sample", "data.decode",   "data.validation",
    "data.size",          "data.channels", "data.limit_train",
    "data.limit_test",    "seed"};

template <std::size_t size>
bool is_among(const std::array<std::string_view, size>& names, const std::string& key) {
  return std::ranges::any_of(names, [&](std::string_view name) {
    return key == name || key.starts_with(std::string(name) + ".");
  });
}

/// Returns the values of a config by their keys, as --set takes them.
nlohmann::json flat(const RunConfig& config) {
  nlohmann::json values = nlohmann::json::object();
  const nlohmann::json pointers =
      nlohmann::json::parse(write_run_config(config, /*with_output=*/false)).flatten();
  for (const auto& [pointer, value] : pointers.items()) {
    std::string key = pointer.substr(1);
    std::ranges::replace(key, '/', '.');
    values[key] = value;
  }
  return values;
}

std::string text_of(const nlohmann::json& values, const std::string& key) {
  return values.contains(key) ? values[key].dump() : "not set";
}

/// Returns "KEY was OLD and is NEW" for each key that differs and for which `counts`.
template <class Counts>
std::vector<std::string> differences_in(const RunConfig& before, const RunConfig& now,
                                        const Counts& counts) {
  const nlohmann::json old_values = flat(before);
  const nlohmann::json new_values = flat(now);
  std::set<std::string> keys;
  for (const nlohmann::json* values : {&old_values, &new_values}) {
    for (const auto& [key, value] : values->items()) keys.insert(key);
  }
  std::vector<std::string> differences;
  for (const std::string& key : keys) {
    const std::string was = text_of(old_values, key);
    const std::string is = text_of(new_values, key);
    if (was == is || !counts(key)) continue;
    std::string text = key;
    text.append(" was ").append(was).append(" and is ").append(is);
    differences.push_back(std::move(text));
  }
  return differences;
}

}  // namespace

std::vector<std::string> config_differences(const RunConfig& before, const RunConfig& now) {
  return differences_in(before, now,
                        [](const std::string& key) { return !is_among(kWithoutEffect, key); });
}

std::vector<std::string> data_differences(const RunConfig& before, const RunConfig& now) {
  const bool holds_out = before.data.validation > 0 && now.data.validation > 0;
  return differences_in(before, now, [holds_out](const std::string& key) {
    return is_among(kOfSamples, key) && (key != "seed" || holds_out);
  });
}

}  // namespace mnist_train::settings
