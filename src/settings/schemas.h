#pragma once

#include "settings/data_options.h"
#include "settings/launch_options.h"
#include "settings/limits.h"
#include "settings/model_options.h"
#include "settings/train_options.h"
#include "strict_json/schema.h"

/// The tables of the config's groups.
namespace mnist_train::settings {

/// Returns the keys at the top level that describe training.
strict_json::Schema<TrainOptions> train_schema();

/// Returns the keys of `data`.
strict_json::Schema<DataOptions> data_schema();

/// Returns the keys of `model`.
strict_json::Schema<ModelOptions> model_schema();

/// Returns the keys of `launch`.
strict_json::Schema<LaunchOptions> launch_schema();

}  // namespace mnist_train::settings
