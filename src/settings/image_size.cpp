#include "settings/image_size.h"

#include "settings/schemas.h"

namespace mnist_train::settings {

std::string text_of(const ImageSize& size) {
  return std::to_string(size.height) + "x" + std::to_string(size.width);
}

Type<ImageSize> image_size() { return height_and_width(1, kMaxImageSide); }

Type<ImageSize> height_and_width(std::int64_t min, std::int64_t max) {
  const auto side = integer(min, max);
  const auto square = converted<ImageSize>(
      side,
      [](std::int64_t both) {
        return ImageSize{both, both};
      },
      [](const ImageSize& size) { return size.height; });
  auto pair = converted<ImageSize>(
      list_of(side),
      [](const Sides& read) {
        return ImageSize{read.front(), read.back()};
      },
      sides);
  pair.fragment["minItems"] = 2;
  pair.fragment["maxItems"] = 2;
  pair.read = [read = pair.read](const JsonCursor& cursor) -> std::optional<ImageSize> {
    if (cursor.node().items.size() == 2) return read(cursor);
    cursor.add_mismatch("one number or [height, width]");
    return std::nullopt;
  };
  return brief_or_full(square, pair, "[height, width]",
                       [](const ImageSize& size) { return size.height == size.width; });
}

}  // namespace mnist_train::settings
