#pragma once

#include "strict_json/document.h"

namespace mnist_train::settings {

/// `over` laid on `under`, as strict_json::merge does. A layer that names one of two keys that
/// exclude each other (batch_size_per_process, data.format) takes back the other one (batch_size,
/// data.dataset) where a lower layer named it, and a layer that names another model or format takes
/// back what belonged to the lower one's.
strict_json::Node lay_over(strict_json::Node under, strict_json::Node over);

}  // namespace mnist_train::settings
