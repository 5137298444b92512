#include "settings/augment_options.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>

#include "base/print.h"
#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

using AugmentRow = Alternative<AugmentationOptions>;

constexpr std::size_t kMaxEntries = 32;
constexpr double kMinRatio = 1e-3;  // of side lengths
constexpr double kMaxRatio = 1e3;
constexpr double kMaxFactor = 1e6;

/// Returns the type of a variant that contains `inner`.
template <class Variant, class T>
Type<Variant> holding(const Type<T>& inner) {
  return converted<Variant>(
      inner, [](const T& value) { return Variant(value); },
      [](const Variant& value) { return std::get<T>(value); });
}

/// Returns the type of a variant that contains a number in the range or a value of type `full`,
/// shown as `form` in messages.
template <class Variant, class Full>
Type<Variant> number_or(const NumberRange& range, const Type<Full>& full, const std::string& form) {
  return brief_or_full(holding<Variant>(number(range)), holding<Variant>(full), form,
                       [](const Variant& value) { return std::holds_alternative<double>(value); });
}

/// Returns the type of a number, or of a list of numbers in the same range.
Type<PerChannel> per_channel(const NumberRange& range) {
  return number_or<PerChannel>(range, list_of(number(range), "one number per channel", 1),
                               "a list with one number per channel");
}

/// Returns the type of `Fill`.
Type<Fill> fill_type() {
  const Type<PerChannel> values = per_channel({0, 255});
  const Json background = "background";
  Json choices = values.fragment.at("anyOf");
  choices.push_back({{"const", background}});
  return {.read = [values, background](const JsonCursor& cursor) -> std::optional<Fill> {
            if (cursor.value() == background) return Fill{0.0, true};
            std::optional<PerChannel> value = values.read(cursor.or_else(background.dump()));
            if (!value) return std::nullopt;
            return Fill{*std::move(value), false};
          },
          .write =
              [values, background](const Fill& fill) {
                return fill.is_background ? background : values.write(fill.value);
              },
          .fragment = {{"anyOf", choices}}};
}

/// Returns the type of [min, max].
Type<Interval> interval(const NumberRange& range) {
  using Ends = std::vector<double>;
  const std::string form = "[min, max] with min <= max";
  Type<Ends> ordered = list_of(number(range), form, 2, 2);
  ordered.read = [read = ordered.read, form](const JsonCursor& cursor) -> std::optional<Ends> {
    std::optional<Ends> ends = read(cursor);
    if (!ends || ends->front() <= ends->back()) return ends;
    return cursor.add_mismatch(form);
  };
  return converted<Interval>(
      ordered, [](const Ends& ends) { return Interval(ends[0], ends[1]); },
      [](const Interval& value) {
        return Ends{value.min, value.max};
      });
}

/// Returns the type of a distance up to `max` from the centre, or of an interval in [min, max].
Type<JitterRange> jitter_range(double min, double max) {
  return number_or<JitterRange>({0, max}, interval({min, max}), "[min, max]");
}

Schema<NormalizeOptions> normalize_schema() {
  Schema<NormalizeOptions> schema;
  ADD_KEY(schema, mean, per_channel({-kMaxFloat, kMaxFloat}),
          "Subtracted from value / 255; one number, or one per channel.");
  ADD_KEY(schema, std, per_channel({kMinFloat, kMaxFloat}),
          "Divisor of the difference; one number, or one per channel.");
  return schema;
}

std::string fill_doc(const std::string& pixels) {
  return "Value of " + pixels +
         ", from 0 to 255: one number, or one per channel; or \"background\": data.background.";
}

/// Returns the table row of an augmentation with these keys.
template <class Kind>
AugmentRow augment_row(const std::string& name, const Schema<Kind>& keys) {
  Schema<AugmentationOptions> schema{Kind{}};
  schema.add_name(name);
  schema.include(
      [](auto& value) -> auto& { return std::get<Kind>(value); }, keys);
  const auto is_of_kind = [](const AugmentationOptions& value) {
    return std::holds_alternative<Kind>(value);
  };
  return {name, std::move(schema), is_of_kind};
}

AugmentRow random_crop() {
  Schema<RandomCropOptions> schema;
  ADD_KEY(schema, size, optional_of(image_size()),
          "Size of the window; null: the image's size. Test images get the centre window.");
  ADD_KEY(schema, padding, integer(0, kMaxImageSide), "Pixels added on every side first.");
  ADD_KEY(schema, fill, fill_type(), fill_doc("these pixels"));
  schema.check([](RandomCropOptions&, const JsonCursor& cursor) {
    const bool pads = cursor.has("padding") && cursor.member("padding").value() != 0;
    const bool is_unclear = cursor.is_unclear("size") || cursor.is_unclear("padding");
    if (!cursor.has_value("size") && !pads && !is_unclear) {
      cursor.add_error("has no effect without size or padding");
    }
  });
  return augment_row("random_crop", schema);
}

AugmentRow random_resized_crop() {
  Schema<RandomResizedCropOptions> schema;
  ADD_KEY(schema, size, image_size(),
          "Size to which the window is resized. Test images get the centre window of this size or, "
          "if they are smaller, the largest with its aspect ratio, resized.",
          kRequired);
  ADD_KEY(schema, scale, interval({0, 1, true}),
          "Range of the window's area, as a fraction of the image's.");
  ADD_KEY(schema, ratio, interval({kMinRatio, kMaxRatio}),
          "Range of the window's width divided by its height.");
  return augment_row("random_resized_crop", schema);
}

template <class Options>
AugmentRow flip(const std::string& name) {
  return augment_row(name, one_key("probability", &Options::probability, number({0, 1}),
                                   "Fraction of the images that are flipped."));
}

AugmentRow rotate() {
  Schema<RotateOptions> schema;
  ADD_KEY(schema, degrees, number({0, 180, true}),
          "The angle is drawn between -degrees and degrees.", kRequired);
  ADD_KEY(schema, fill, fill_type(), fill_doc("pixels from outside the image"));
  return augment_row("rotate", schema);
}

AugmentRow color_jitter() {
  constexpr double kHalfCircle = 0.5;
  constexpr const char* kFactorDoc =
      "The factor is drawn from 1 - this (not below 0) to 1 + this, or from [min, max].";
  const auto factor = jitter_range(0, kMaxFactor);
  Schema<ColorJitterOptions> schema;
  ADD_KEY(schema, brightness, factor, kFactorDoc);
  ADD_KEY(schema, contrast, factor, kFactorDoc);
  ADD_KEY(schema, saturation, factor, kFactorDoc);
  ADD_KEY(schema, hue, jitter_range(-kHalfCircle, kHalfCircle),
          "The shift on the colour circle is drawn from minus to plus this, or from [min, max]; "
          "1 is a full turn.");
  schema.check([](ColorJitterOptions&, const JsonCursor& cursor) {
    for (const char* key : {"brightness", "contrast", "saturation", "hue"}) {
      if (cursor.has_value(key) || cursor.is_unclear(key)) return;
    }
    cursor.add_error("has no effect without brightness, contrast, saturation or hue");
  });
  return augment_row("color_jitter", schema);
}

AugmentRow random_erasing() {
  Schema<RandomErasingOptions> schema;
  ADD_KEY(schema, probability, number({0, 1}), "Fraction of the images that get a rectangle.");
  ADD_KEY(schema, scale, interval({0, 1, true}),
          "Range of the rectangle's area, as a fraction of the image's.");
  ADD_KEY(schema, ratio, interval({kMinRatio, kMaxRatio}),
          "Range of the rectangle's height divided by its width.");
  ADD_KEY(schema, fill, fill_type(), fill_doc("its pixels"));
  return augment_row("random_erasing", schema);
}

Type<MixupScope> mixing_scope_type() { return one_of<MixupScope>({"local", "global"}); }

constexpr const char* kPartnerDoc =
    "Partner: the next sample of the epoch's order (local), or the next process's sample at the "
    "same position (global).";

AugmentRow mixup() {
  using Options = MixupOptions;
  Schema<Options> schema;
  ADD_KEY(schema, alpha, optional_of(number({0, kMaxFloat, true})),
          "Weights are drawn from Beta(alpha, alpha); null if weight is set.");
  ADD_KEY(schema, weight, optional_of(number({0, 1})),
          "A fixed weight of the sample itself, instead of alpha.");
  ADD_KEY(schema, scope, mixing_scope_type(), kPartnerDoc);
  schema.check([](Options& options, const JsonCursor& cursor) {
    if (!options.weight) {
      if (!options.alpha) options.alpha = Options{}.alpha;
    } else if (cursor.has_value("alpha")) {
      cursor.add_error_at("weight",
                          "conflicts with alpha; set only one of them (null unsets a key)");
    } else {
      options.alpha.reset();
    }
  });
  return augment_row("mixup", schema);
}

AugmentRow cutmix() {
  Schema<CutmixOptions> schema;
  ADD_KEY(schema, alpha, number({0, kMaxFloat, true}),
          "The fraction of the image that is kept is drawn from Beta(alpha, alpha).");
  ADD_KEY(schema, scope, mixing_scope_type(), kPartnerDoc);
  return augment_row("cutmix", schema);
}

/// The augmentations, in the order of the variant.
const std::vector<AugmentRow>& augmentations() {
  static const std::vector<AugmentRow> kTable{
      random_crop(),
      random_resized_crop(),
      flip<HorizontalFlipOptions>("horizontal_flip"),
      flip<VerticalFlipOptions>("vertical_flip"),
      rotate(),
      augment_row("resize", one_key("size", &ResizeOptions::size, image_size(),
                                    "One number for a square, or [height, width].", kRequired)),
      color_jitter(),
      augment_row("trivial_augment", Schema<TrivialAugmentOptions>()),
      augment_row("normalize", normalize_schema()),
      random_erasing(),
      augment_row("cutout", one_key("size", &CutoutOptions::size, integer(1, kMaxImageSide),
                                    "Side of the square, in pixels.", kRequired)),
      mixup(),
      cutmix()};
  return kTable;
}

/// Returns the entry's fill, or null if it has none.
template <class Entry>
auto fill_of(Entry& entry) {
  using Found = std::conditional_t<std::is_const_v<Entry>, const Fill*, Fill*>;
  return std::visit(
      [](auto& options) -> Found {
        if constexpr (requires { options.fill; }) return &options.fill;
        return nullptr;
      },
      entry);
}

bool fits(const RandomCropOptions& crop, const ImageSize& size) {
  return crop.size->height <= size.height + 2 * crop.padding &&
         crop.size->width <= size.width + 2 * crop.padding;
}

/// Tracks the image size, if it is known, through the list. Calls `misfit(i, message)` for each
/// entry whose crop is larger than the padded image.
template <class Misfit>
std::optional<ImageSize> follow_size(const AugmentList& list, std::optional<ImageSize> size,
                                     const Misfit& misfit) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (const auto* resize = std::get_if<ResizeOptions>(&list[i])) size = resize->size;
    if (const auto* window = std::get_if<RandomResizedCropOptions>(&list[i])) size = window->size;
    const auto* crop = std::get_if<RandomCropOptions>(&list[i]);
    if (crop == nullptr || !crop->size) continue;
    if (size && !fits(*crop, *size)) {
      misfit(i, fmt::format("random_crop needs {} pixels, but images of {} with padding {} are "
                            "smaller",
                            text_of(*crop->size), text_of(*size), crop->padding));
    }
    size = crop->size;
  }
  return size;
}

bool changes_colours(const AugmentationOptions& entry) {
  return std::holds_alternative<ColorJitterOptions>(entry) ||
         std::holds_alternative<TrivialAugmentOptions>(entry);
}

void check_repetitions(const AugmentList& list, const JsonCursor& cursor) {
  std::set<std::string> seen;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string name = name_of(list[i]);
    const bool may_repeat = name != "normalize" && name != "mixup" && name != "cutmix";
    if (may_repeat || seen.insert(name).second) continue;
    cursor.item(i).add_error("is the second " + name + "; use only one");
  }
}

/// Checks the entries after normalize, which process floats instead of bytes.
void check_after_normalize(const AugmentList& list, const JsonCursor& cursor) {
  bool is_normalized = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    is_normalized = is_normalized || std::holds_alternative<NormalizeOptions>(list[i]);
    if (!is_normalized) continue;
    const Fill* fill = fill_of(list[i]);
    if (fill != nullptr && *fill != Fill{}) {
      cursor.item(i).add_error_at("fill", "must be 0 (the mean) after normalize; put " +
                                              name_of(list[i]) + " before it to fill with colours");
    } else if (changes_colours(list[i])) {
      cursor.item(i).add_error("changes colours, so it must come before normalize");
    }
  }
}

}  // namespace

std::string name_of(const AugmentationOptions& augmentation) {
  return augmentations()[augmentation.index()].name;
}

ImageSize augmented_size(const AugmentList& list, ImageSize size) {
  const auto refuse = [](std::size_t i, const std::string& message) {
    throw ConfigKeyError(fmt::format("/data/augment/{}: {}", i, message));
  };
  return *follow_size(list, size, refuse);
}

ImageSize centre_window(const RandomResizedCropOptions& options, ImageSize size) {
  const auto& [height, width] = options.size;
  const auto real = [](std::int64_t number) { return static_cast<double>(number); };
  const double part =
      std::min({1.0, real(size.height) / real(height), real(size.width) / real(width)});
  const auto side = [&](std::int64_t wanted) {
    return std::max<std::int64_t>(1, std::llrint(part * real(wanted)));
  };
  return {side(height), side(width)};
}

std::int64_t centre_begin(std::int64_t size, std::int64_t window) {
  const std::int64_t rest = size - window;
  return rest < 0 ? rest / 2 : std::llrint(static_cast<double>(rest) / 2);
}

void check_crops(const AugmentList& list, const std::optional<ImageSize>& size,
                 const JsonCursor& cursor) {
  follow_size(list, size, [&](std::size_t i, const std::string& message) {
    cursor.item(i).add_error(message);
  });
}

Type<AugmentList> augment_list() {
  Type<AugmentList> type =
      list_of(named_union(augmentations()),
              fmt::format("a list of at most {} entries", kMaxEntries), 0, kMaxEntries);
  type.read = [read = type.read](const JsonCursor& cursor) -> std::optional<AugmentList> {
    std::optional<AugmentList> list = read(cursor);
    if (!list) return std::nullopt;
    check_repetitions(*list, cursor);
    if (find<MixupOptions>(*list) && find<CutmixOptions>(*list)) {
      cursor.add_error("has both mixup and cutmix; each sample is mixed only once, so remove one");
    }
    check_after_normalize(*list, cursor);
    check_crops(*list, std::nullopt, cursor);
    return list;
  };
  return type;
}

Type<NormalizeOptions> normalize() { return group(normalize_schema()); }

std::vector<std::pair<std::string, std::string>> channel_mismatches(
    const AugmentationOptions& entry, std::int64_t channels) {
  if (changes_colours(entry) && channels != 1 && channels != 3) {
    return {{"name", "needs images of 1 or 3 channels, not " + std::to_string(channels)}};
  }
  std::vector<std::pair<std::string, std::string>> mismatches;
  const auto check = [&](const char* key, const PerChannel& value) {
    const auto* list = std::get_if<std::vector<double>>(&value);
    if (list == nullptr || std::ssize(*list) == channels) return;
    mismatches.emplace_back(key, "lists " + counted(std::ssize(*list), "number") +
                                     ", but the images have " + counted(channels, "channel"));
  };
  if (const auto* normalize = std::get_if<NormalizeOptions>(&entry)) {
    check("mean", normalize->mean);
    check("std", normalize->std);
  }
  if (const Fill* fill = fill_of(entry)) check("fill", fill->value);
  return mismatches;
}

std::optional<MixupScope> mixing_scope(const AugmentList& list) {
  if (const auto* mixup = find<MixupOptions>(list)) return mixup->scope;
  if (const auto* cutmix = find<CutmixOptions>(list)) return cutmix->scope;
  return std::nullopt;
}

Interval jitter_interval(const JitterRange& range, double center) {
  if (const auto* ends = std::get_if<Interval>(&range)) return *ends;
  const double distance = std::get<double>(range);
  const double min = center > 0 ? 0 : -distance;
  return {std::max(min, center - distance), center + distance};
}

AugmentList list_for_images(AugmentList list, std::int64_t channels,
                            const std::array<std::uint8_t, 3>& background) {
  const auto [red, green, blue] = background;
  const int gray = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;  // Pillow's "L"
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (const auto& [key, reason] : channel_mismatches(list[i], channels)) {
      throw ConfigKeyError(fmt::format("/data/augment/{}/{}: {}", i, key, reason));
    }
    Fill* fill = fill_of(list[i]);
    if (fill == nullptr || !fill->is_background) continue;
    const std::vector<double> colour(background.begin(), background.end());
    *fill = {channels == 3 ? PerChannel(colour) : PerChannel(static_cast<double>(gray))};
  }
  return list;
}

}  // namespace mnist_train::settings
