#include "settings/augment_options.h"

#include <optional>
#include <utility>

#include "base/config_key_error.h"
#include "settings/schemas.h"
#include "strict_json/named_union.h"

namespace mnist_train::settings {

namespace {

using Row = strict_json::Alternative<AugmentationOptions>;

constexpr std::size_t kMaxEntries = 32;

/// A number, or a list of numbers of the same range.
Type<PerChannel> per_channel(const strict_json::NumberRange& range) {
  const auto one = number(range);
  const auto list = list_of(one);
  Type<PerChannel> type;
  type.fragment = {{"anyOf", {one.fragment, list.fragment}}};
  type.fragment["anyOf"][1]["minItems"] = 1;
  type.read = [one, list](const JsonCursor& cursor) -> std::optional<PerChannel> {
    if (cursor.node().kind != JsonKind::kArray) {
      return one.read(cursor.or_else("a list with one number a channel"));
    }
    if (cursor.node().items.empty()) {
      cursor.add_mismatch("one number a channel");
      return std::nullopt;
    }
    return list.read(cursor);
  };
  type.write = [one, list](const PerChannel& value) {
    const auto* shared = std::get_if<double>(&value);
    return shared != nullptr ? one.write(*shared) : list.write(std::get<1>(value));
  };
  return type;
}

Schema<NormalizeOptions> normalize_schema() {
  Schema<NormalizeOptions> schema;
  schema.add("mean", &NormalizeOptions::mean, per_channel({-kMaxFloat, kMaxFloat}),
             "Subtracted from every value; a number, or one for each channel.");
  schema.add("std", &NormalizeOptions::std, per_channel({kMinFloat, kMaxFloat}),
             "Divides the difference; a number, or one for each channel.");
  return schema;
}

bool is_zero(const strict_json::Node& node) {
  return node.kind == JsonKind::kUnsigned && node.unsigned_integer == 0;
}

Row random_crop() {
  using Options = RandomCropOptions;
  Schema<Options> schema;
  schema.add(
      "size", &Options::size, optional_of(image_size()),
      "The window's size; null: that of the image. Test images are cut to it in the middle.");
  schema.add("padding", &Options::padding, integer(0, kMaxImageSide),
             "Pixels of zero on every side before.", {"pad"});
  schema.check([](Options&, const JsonCursor& cursor) {
    const bool pads = cursor.has("padding") && !is_zero(cursor.member("padding").node());
    if (!cursor.gives("size") && !pads) cursor.add_error("changes nothing without size or padding");
  });
  return strict_json::alternative<AugmentationOptions>("random_crop", schema);
}

Row horizontal_flip() {
  Schema<HorizontalFlipOptions> schema;
  schema.add("probability", &HorizontalFlipOptions::probability, number({0, 1}),
             "Fraction of the images that are flipped.", {"p", "prob"});
  Row row = strict_json::alternative<AugmentationOptions>("horizontal_flip", schema);
  row.bare = HorizontalFlipOptions{};
  return row;
}

Row rotate() {
  Schema<RotateOptions> schema;
  schema.add("degrees", &RotateOptions::degrees, number({0, 180, true}),
             "The angle is drawn between minus and plus so many.", {"angle", "max_degrees"});
  return strict_json::alternative<AugmentationOptions>("rotate", schema, {"degrees"});
}

Row resize() {
  Schema<ResizeOptions> schema;
  schema.add("size", &ResizeOptions::size, image_size(),
             "One number for a square, or [height, width].");
  return strict_json::alternative<AugmentationOptions>("resize", schema, {"size"});
}

Row cutout() {
  Schema<CutoutOptions> schema;
  schema.add("size", &CutoutOptions::size, integer(1, kMaxImageSide),
             "Side of the square, in pixels.", {"length"});
  return strict_json::alternative<AugmentationOptions>("cutout", schema, {"size"});
}

Row mixup() {
  using Options = MixupOptions;
  Schema<Options> schema;
  schema.add("alpha", &Options::alpha, optional_of(number({0, kMaxFloat, true})),
             "Weights are drawn from Beta(alpha, alpha); null beside weight.");
  schema.add("weight", &Options::weight, optional_of(number({0, 1})),
             "The sample's own weight, instead of alpha.", {"lambda", "lam"});
  schema.add("scope", &Options::scope,
             one_of<MixupScope>({{MixupScope::kLocal, "local"}, {MixupScope::kGlobal, "global"}}),
             "Partners: local, the next sample of the epoch's order; global, the next process's "
             "sample at the same place.");
  schema.check([](Options& options, const JsonCursor& cursor) {
    if (!options.weight) {
      if (!options.alpha) options.alpha = Options{}.alpha;
    } else if (cursor.gives("alpha")) {
      cursor.add_error_at("weight",
                          "conflicts with alpha; set only one of them (null takes a value back)");
    } else {
      options.alpha.reset();
    }
  });
  Row row = strict_json::alternative<AugmentationOptions>("mixup", schema);
  row.bare = MixupOptions{};
  return row;
}

/// The table of the kinds, in the order of the variant.
const std::vector<Row>& table() {
  static const std::vector<Row> kTable{
      random_crop(),
      horizontal_flip(),
      rotate(),
      resize(),
      strict_json::alternative<AugmentationOptions>("normalize", normalize_schema()),
      cutout(),
      mixup()};
  return kTable;
}

ImageSize cropped(const RandomCropOptions& crop, ImageSize size, std::size_t position) {
  if (!crop.size) return size;
  if (crop.size->height <= size.height + 2 * crop.padding &&
      crop.size->width <= size.width + 2 * crop.padding) {
    return *crop.size;
  }
  throw ConfigKeyError("/data/augment/" + std::to_string(position) + ": random_crop takes " +
                       text_of(*crop.size) + " pixels, but images of " + text_of(size) +
                       " with padding " + std::to_string(crop.padding) + " have fewer");
}

/// Checks crops behind the first entry that fixes a size, whatever the images are.
void check_sizes(const AugmentList& list, const JsonCursor& cursor) {
  std::optional<ImageSize> size;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (const auto* resize = std::get_if<ResizeOptions>(&list[i])) size = resize->size;
    const auto* crop = std::get_if<RandomCropOptions>(&list[i]);
    if (crop == nullptr || !crop->size) continue;
    if (size && (crop->size->height > size->height + 2 * crop->padding ||
                 crop->size->width > size->width + 2 * crop->padding)) {
      cursor.item(i).add_error("takes more pixels than images have after the entries before it");
    }
    size = crop->size;
  }
}

template <class Kind>
void check_only_one(const AugmentList& list, const JsonCursor& cursor) {
  bool seen = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!std::holds_alternative<Kind>(list[i])) continue;
    if (seen) cursor.item(i).add_error("is the second " + name_of(list[i]) + "; one is enough");
    seen = true;
  }
}

}  // namespace

std::string name_of(const AugmentationOptions& augmentation) {
  return table()[augmentation.index()].name;
}

ImageSize augmented_size(const AugmentList& list, ImageSize size) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (const auto* resize = std::get_if<ResizeOptions>(&list[i])) size = resize->size;
    if (const auto* crop = std::get_if<RandomCropOptions>(&list[i])) size = cropped(*crop, size, i);
  }
  return size;
}

Type<AugmentList> augment_list() {
  Type<AugmentList> type = list_of(strict_json::named_union(table()));
  type.fragment["maxItems"] = kMaxEntries;
  type.read = [read = type.read](const JsonCursor& cursor) -> std::optional<AugmentList> {
    if (cursor.node().items.size() > kMaxEntries) {
      cursor.add_mismatch("at most " + std::to_string(kMaxEntries) + " entries");
      return std::nullopt;
    }
    std::optional<AugmentList> list = read(cursor);
    if (!list) return std::nullopt;
    check_only_one<NormalizeOptions>(*list, cursor);
    check_only_one<MixupOptions>(*list, cursor);
    check_sizes(*list, cursor);
    return list;
  };
  return type;
}

Type<NormalizeOptions> normalize() { return group(normalize_schema()); }

std::vector<std::pair<std::string, std::string>> channel_mismatches(
    const NormalizeOptions& normalize, std::int64_t channels) {
  std::vector<std::pair<std::string, std::string>> mismatches;
  const auto compare = [&](const char* key, const PerChannel& value) {
    const auto* list = std::get_if<std::vector<double>>(&value);
    if (list == nullptr || static_cast<std::int64_t>(list->size()) == channels) return;
    mismatches.emplace_back(key, "lists " + std::to_string(list->size()) +
                                     " numbers, but the images have " + std::to_string(channels) +
                                     (channels == 1 ? " channel" : " channels"));
  };
  compare("mean", normalize.mean);
  compare("std", normalize.std);
  return mismatches;
}

}  // namespace mnist_train::settings
