#include "settings/image_size.h"

#include <optional>

#include "strict_json/composite_type.h"

namespace mnist_train::settings {

strict_json::Type<ImageSize> image_size() {
  const auto side = strict_json::integer(1, kMaxImageSide);
  const auto sides = strict_json::list_of(side);
  strict_json::Json pair = sides.fragment;
  pair["minItems"] = 2;
  pair["maxItems"] = 2;
  strict_json::Type<ImageSize> type;
  type.fragment = {{"anyOf", {side.fragment, pair}}};
  type.read = [side, sides](const strict_json::JsonCursor& cursor) -> std::optional<ImageSize> {
    if (cursor.node().kind != strict_json::JsonKind::kArray) {
      const auto both = side.read(cursor.or_else("[height, width]"));
      if (!both) return std::nullopt;
      return ImageSize{*both, *both};
    }
    if (cursor.node().items.size() != 2) {
      cursor.add_mismatch("one number or [height, width]");
      return std::nullopt;
    }
    const auto read = sides.read(cursor);
    if (!read) return std::nullopt;
    return ImageSize{read->front(), read->back()};
  };
  type.write = [](const ImageSize& size) -> strict_json::Json {
    if (size.height == size.width) return size.height;
    return strict_json::Json::array({size.height, size.width});
  };
  return type;
}

}  // namespace mnist_train::settings
