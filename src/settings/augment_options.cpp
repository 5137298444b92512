#include "settings/augment_options.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

using AugmentRow = Alternative<AugmentationOptions>;

constexpr std::size_t kMaxEntries = 32;

/// Returns the type of a number, or a list of numbers of the same range.
Type<PerChannel> per_channel(const strict_json::NumberRange& range) {
  using List = std::vector<double>;
  const auto one = converted<PerChannel>(
      number(range), [](double value) { return PerChannel(value); },
      [](const PerChannel& value) { return std::get<double>(value); });
  auto list = converted<PerChannel>(
      list_of(number(range)), [](List values) { return PerChannel(std::move(values)); },
      [](const PerChannel& value) { return std::get<List>(value); });
  list.fragment["minItems"] = 1;
  list.read = [read = list.read](const JsonCursor& cursor) -> std::optional<PerChannel> {
    if (!cursor.node().items.empty()) return read(cursor);
    cursor.add_mismatch("one number per channel");
    return std::nullopt;
  };
  return brief_or_full(
      one, list, "a list with one number per channel",
      [](const PerChannel& value) { return std::holds_alternative<double>(value); });
}

Schema<NormalizeOptions> normalize_schema() {
  Schema<NormalizeOptions> schema;
  schema.add("mean", &NormalizeOptions::mean, per_channel({-kMaxFloat, kMaxFloat}),
             "Subtracted from every value; one number, or one per channel.");
  schema.add("std", &NormalizeOptions::std, per_channel({kMinFloat, kMaxFloat}),
             "Divisor of the difference; one number, or one per channel.");
  return schema;
}

AugmentRow random_crop() {
  using Options = RandomCropOptions;
  Schema<Options> schema;
  schema.add("size", &Options::size, optional_of(image_size()),
             "Size of the window; null: the image's size. Test images get the centre window.");
  schema.add("padding", &Options::padding, integer(0, kMaxImageSide),
             "Zeros added on every side first, in pixels.", {"pad"});
  schema.check([](Options&, const JsonCursor& cursor) {
    const bool pads = cursor.has("padding") && cursor.member("padding").node().value != 0;
    if (!cursor.gives("size") && !pads) cursor.add_error("changes nothing without size or padding");
  });
  return alternative<AugmentationOptions>("random_crop", schema);
}

AugmentRow horizontal_flip() {
  Schema<HorizontalFlipOptions> schema;
  schema.add("probability", &HorizontalFlipOptions::probability, number({0, 1}),
             "Fraction of the images that are flipped.", {"p", "prob"});
  AugmentRow row = alternative<AugmentationOptions>("horizontal_flip", schema);
  row.bare = HorizontalFlipOptions{};
  return row;
}

AugmentRow rotate() {
  Schema<RotateOptions> schema;
  schema.add("degrees", &RotateOptions::degrees, number({0, 180, true}),
             "The angle is drawn between -degrees and degrees.", {"angle", "max_degrees"});
  return alternative<AugmentationOptions>("rotate", schema, {"degrees"});
}

AugmentRow resize() {
  Schema<ResizeOptions> schema;
  schema.add("size", &ResizeOptions::size, image_size(),
             "One number for a square, or [height, width].");
  return alternative<AugmentationOptions>("resize", schema, {"size"});
}

AugmentRow cutout() {
  Schema<CutoutOptions> schema;
  schema.add("size", &CutoutOptions::size, integer(1, kMaxImageSide),
             "Side of the square, in pixels.", {"length"});
  return alternative<AugmentationOptions>("cutout", schema, {"size"});
}

AugmentRow mixup() {
  using Options = MixupOptions;
  Schema<Options> schema;
  schema.add("alpha", &Options::alpha, optional_of(number({0, kMaxFloat, true})),
             "Weights are drawn from Beta(alpha, alpha); null with weight.");
  schema.add("weight", &Options::weight, optional_of(number({0, 1})),
             "A fixed weight of the sample itself, instead of alpha.", {"lambda", "lam"});
  schema.add(
      "scope", &Options::scope, one_of<MixupScope>({"local", "global"}),
      "Partner: the next sample of the epoch's order (local), or the next process's sample at "
      "the same position (global).");
  schema.check([](Options& options, const JsonCursor& cursor) {
    if (!options.weight) {
      if (!options.alpha) options.alpha = Options{}.alpha;
    } else if (cursor.gives("alpha")) {
      cursor.add_error_at("weight",
                          "conflicts with alpha; set only one of them (null unsets a key)");
    } else {
      options.alpha.reset();
    }
  });
  AugmentRow row = alternative<AugmentationOptions>("mixup", schema);
  row.bare = MixupOptions{};
  return row;
}

/// The kinds, in the order of the variant.
const std::vector<AugmentRow>& augmentations() {
  static const std::vector<AugmentRow> kTable{
      random_crop(),
      horizontal_flip(),
      rotate(),
      resize(),
      alternative<AugmentationOptions>("normalize", normalize_schema()),
      cutout(),
      mixup()};
  return kTable;
}

bool fits(const RandomCropOptions& crop, const ImageSize& size) {
  return crop.size->height <= size.height + 2 * crop.padding &&
         crop.size->width <= size.width + 2 * crop.padding;
}

/// Checks crops after the first entry that fixes a size, for any images.
void check_sizes(const AugmentList& list, const JsonCursor& cursor) {
  std::optional<ImageSize> size;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (const auto* resize = std::get_if<ResizeOptions>(&list[i])) size = resize->size;
    const auto* crop = std::get_if<RandomCropOptions>(&list[i]);
    if (crop == nullptr || !crop->size) continue;
    if (size && !fits(*crop, *size)) {
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
  return augmentations()[augmentation.index()].name;
}

ImageSize augmented_size(const AugmentList& list, ImageSize size) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (const auto* resize = std::get_if<ResizeOptions>(&list[i])) size = resize->size;
    const auto* crop = std::get_if<RandomCropOptions>(&list[i]);
    if (crop == nullptr || !crop->size) continue;
    if (!fits(*crop, size)) {
      throw ConfigKeyError("/data/augment/" + std::to_string(i) + ": random_crop takes " +
                           text_of(*crop->size) + " pixels, but images of " + text_of(size) +
                           " with padding " + std::to_string(crop->padding) + " have fewer");
    }
    size = *crop->size;
  }
  return size;
}

Type<AugmentList> augment_list() {
  Type<AugmentList> type = list_of(named_union(augmentations()));
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
