#pragma once

#include "strict_json/document.h"

namespace mnist_train::settings {

/// Returns the config layer `under` with `over` laid over it, as strict_json::merge does. Where the
/// upper layer names one of two keys that exclude each other (batch_size_per_process, data.format),
/// the other one of the lower layer (batch_size, data.dataset) is dropped. A layer that names
/// another model or format drops the keys that belonged to the lower layer's.
strict_json::Node merge_layers(strict_json::Node under, strict_json::Node over);

}  // namespace mnist_train::settings
