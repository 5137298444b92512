#pragma once

namespace mnist_train::strict_json {

/// The table of a group's keys; config/schema.h has it whole.
template <class Owner>
class Schema;

}  // namespace mnist_train::strict_json
