#pragma once

#include <cstdint>
#include <limits>

#include "settings/data_options.h"
#include "settings/model_options.h"
#include "settings/train_options.h"
#include "strict_json/schema.h"

/// The schema tables of the config's groups, and shared building blocks, for this library's source
/// files and for code that lists all keys.
namespace mnist_train::settings {

using namespace strict_json;
using enum strict_json::KeyUse;

/// Limits that keep all products and conversions of these numbers in range.
inline constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int64_t kMaxSteps = (std::int64_t{1} << 53) - 1;  // exact in all JSON readers
inline constexpr std::int64_t kMaxProcessesPerNode = 1024;
inline constexpr std::int64_t kMaxLayerSize = 1 << 20;  // features, channels
inline constexpr double kMaxFloat = 1e38;               // weights are fp32
inline constexpr double kMinFloat = 1e-37;              // above fp32's denormal numbers
inline constexpr double kMaxSeconds = 1e6;

/// Returns a table with a single key.
template <class Options, class T>
Schema<Options> one_key(const std::string& name, T Options::*member, const Type<T>& type,
                        const std::string& doc, const KeyTraits& traits = {}) {
  Schema<Options> schema;
  schema.add(name, member, type, doc, traits);
  return schema;
}

/// Returns the top-level keys that describe training.
Schema<TrainOptions> train_schema();

/// Returns the keys of `data`.
Schema<DataOptions> data_schema();

/// Returns the keys of `model`.
Schema<ModelOptions> model_schema();

Type<ImageSize> image_size();

/// Returns the type of data.augment, which checks the entries and the rules between them.
Type<AugmentList> augment_list();

/// Adds an error for each crop in the list that is larger than its input, given images of `size`.
void check_crops(const AugmentList& list, const std::optional<ImageSize>& size,
                 const JsonCursor& cursor);

/// Returns the type of {"mean", "std"}, each a number or a list with one number per channel.
Type<NormalizeOptions> normalize();

/// Returns all config keys, in the order of the tables.
const std::vector<KnownKey>& config_keys();

/// Location of the JSON Schema of layer lists, which is recursive.
inline constexpr const char* kLayersDefinition = "layers";
inline constexpr const char* kLayersReference = "#/$defs/layers";

/// Returns the JSON Schema of layer lists.
Json layer_list_schema();

}  // namespace mnist_train::settings
