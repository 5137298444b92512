#include "options/image_size.h"

#include <optional>

#include "config/composite_type.h"

namespace mnist_train::options {

config::Type<ImageSize> image_size() {
  const auto side = config::integer(1, kMaxImageSide);
  const auto sides = config::list_of(side);
  config::Json pair = sides.fragment;
  pair["minItems"] = 2;
  pair["maxItems"] = 2;
  config::Type<ImageSize> type;
  type.fragment = {{"anyOf", {side.fragment, pair}}};
  type.read = [side, sides](const config::Place& place) -> std::optional<ImageSize> {
    if (place.node().kind != config::Node::Kind::kArray) {
      const auto both = side.read(place.or_else("[height, width]"));
      if (!both) return std::nullopt;
      return ImageSize{*both, *both};
    }
    if (place.node().items.size() != 2) {
      place.complain_expected("one number or [height, width]");
      return std::nullopt;
    }
    const auto read = sides.read(place);
    if (!read) return std::nullopt;
    return ImageSize{read->front(), read->back()};
  };
  type.write = [](const ImageSize& size) -> config::Json {
    if (size.height == size.width) return size.height;
    return config::Json::array({size.height, size.width});
  };
  return type;
}

}  // namespace mnist_train::options
