#include "settings/image_size.h"

#include "settings/schemas.h"

namespace mnist_train::settings {

std::string text_of(const ImageSize& size) {
  return std::to_string(size.height) + "x" + std::to_string(size.width);
}

Type<ImageSize> image_size() { return height_and_width(1, kMaxImageSide); }

Type<ImageSize> height_and_width(std::int64_t min, std::int64_t max) {
  const auto side = integer(min, max);
  const auto sides = list_of(side);
  Json pair = sides.fragment;
  pair["minItems"] = 2;
  pair["maxItems"] = 2;
  Type<ImageSize> type;
  type.fragment = {{"anyOf", {side.fragment, pair}}};
  type.read = [side, sides](const JsonCursor& cursor) -> std::optional<ImageSize> {
    if (cursor.node().kind != JsonKind::kArray) {
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
  type.write = [](const ImageSize& size) -> Json {
    if (size.height == size.width) return size.height;
    return Json::array({size.height, size.width});
  };
  return type;
}

}  // namespace mnist_train::settings
