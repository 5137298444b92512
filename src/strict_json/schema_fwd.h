#pragma once

namespace mnist_train::strict_json {

/// The table of a group's keys, which strict_json/schema.h defines.
template <class Owner>
class Schema;

}  // namespace mnist_train::strict_json
