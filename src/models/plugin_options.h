#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugin/model.h"

namespace mnist_train::models {

/// The options that a plug-in reads from the config. It notes what is wrong with them instead of
/// throwing through the plug-in's code.
class PluginOptions final : public plugin::Options {
 public:
  /// `text` is that of a JSON object.
  explicit PluginOptions(const std::string& text) : values_(nlohmann::json::parse(text)) {}

  std::int64_t integer(const std::string& name, std::int64_t otherwise, std::int64_t min,
                       std::int64_t max) override;
  double number(const std::string& name, double otherwise, double min, double max) override;
  bool boolean(const std::string& name, bool otherwise) override;
  std::string text(const std::string& name, const std::string& otherwise,
                   const std::vector<std::string>& choices) override;

  /// Throws Error(kConfig) that names all wrong values and, once the plug-in has read its options,
  /// all keys that it does not know.
  void require_correct(bool all_were_read) const;

 private:
  const nlohmann::json* find(const std::string& name);
  void add_error(const std::string& name, const std::string& message);

  nlohmann::json values_;
  std::vector<std::string> known_;  // in the order in which they were asked for
  std::vector<std::string> errors_;
};

}  // namespace mnist_train::models
