#include "cli/commands.h"

#include <CLI/CLI.hpp>
#include <array>
#include <string>

#include "cli/command_flags.h"
#include "cli/version_text.h"

namespace mnist_train::cli {

namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  mnist-train --config configs/mnist.json\n"
    "  mnist-train --config configs/mnist.json --nproc-per-node 2 --set epochs=2\n"
    "  mnist-train evaluate --checkpoint runs/mnist/latest/checkpoints/best.safetensors\n"
    "`mnist-train --config …` is short for `mnist-train train --config …`; "
    "`mnist-train COMMAND --help` shows the flags and examples of a command.";

constexpr const char* kTrainExamples =
    "Examples:\n"
    "  mnist-train --config configs/mnist.json --output runs/first\n"
    "  mnist-train --config configs/mnist.json --output runs/first --resume auto\n"
    "  mnist-train --config configs/mnist.json --set learning_rate=0.02 --set model.name=net "
    "--dry-run";

constexpr const char* kEvaluateExamples =
    "Examples:\n"
    "  mnist-train evaluate --checkpoint runs/first/checkpoints/best.safetensors\n"
    "  mnist-train evaluate --checkpoint runs/first/model.pt --config "
    "configs/mnist.json --set data.limit_test=1000";

constexpr const char* kPredictExamples =
    "Prints a line for each: {\"file\", \"guess\", \"scores\"}, probabilities by "
    "class. Images are made gray or colour and resized\nas the model needs; MNIST's "
    "digits are light on dark, and photos of dark ink are not inverted.\n\n"
    "Examples:\n"
    "  mnist-train predict --checkpoint runs/first/checkpoints/best.safetensors "
    "digit.png photo.jpg\n"
    "  find digits -name '*.png' | mnist-train predict --checkpoint "
    "runs/first/model.pt --config configs/mnist.json -";

constexpr const char* kExportExamples =
    "Examples:\n"
    "  mnist-train export --checkpoint runs/first/checkpoints/best.safetensors "
    "--format pt --output weights.pt\n"
    "  mnist-train export --checkpoint runs/first/checkpoints/best.safetensors "
    "--format pt --with-optimizer --output training.pt\n"
    "  mnist-train export --checkpoint runs/first/model.pt --format safetensors "
    "--output weights.safetensors";

constexpr const char* kFetchExamples =
    "Examples:\n"
    "  mnist-train fetch fashion-mnist --to data/fashion-mnist\n"
    "  mnist-train fetch mnist --to data/mnist --mirror file:///mnt/mirror/mnist";

constexpr const char* kConvertExamples =
    "Examples:\n"
    "  mnist-train convert --from idx:third_party/mnist --to lmdb:data/mnist-lmdb\n"
    "  mnist-train convert --from idx:data/fashion-mnist --to "
    "image-folder:data/fashion-png";

constexpr const char* kReportExamples =
    "Examples:\n"
    "  mnist-train report runs/mnist/latest --output report.html\n"
    "  mnist-train report runs/first runs/second --output comparison.html";

constexpr const char* kDoctorExamples =
    "Exit code 1 if a run would fail, 0 otherwise.\n\n"
    "Examples:\n"
    "  mnist-train doctor\n"
    "  mnist-train doctor --config configs/mnist.json --output /data/runs/next --json\n"
    "  srun --ntasks-per-node 1 mnist-train doctor";

constexpr const char* kPreviewExamples =
    "Examples:\n"
    "  mnist-train preview --config configs/mnist.json --output grid.png\n"
    "  mnist-train preview --config configs/mixup_image_folder.json --output grid.png --set "
    "batch_size=8";

constexpr const char* kConfigSchemaExamples =
    "Example:\n"
    "  mnist-train config-schema > mnist-train.schema.json";

constexpr const char* kCompletionExamples =
    "Examples:\n"
    "  source <(mnist-train completion bash)\n"
    "  mnist-train completion zsh > ~/.zfunc/_mnist-train";

constexpr const char* kManPageExamples =
    "Example:\n"
    "  mnist-train man-page | man --local-file -";

constexpr std::array kCommands{
    CommandEntry{"train", Command::kTrain, "Trains what a config describes (the default)",
                 &add_train, kTrainExamples},
    CommandEntry{"evaluate", Command::kEvaluate,
                 "Test loss and accuracy of a checkpoint or of weights", &add_evaluate,
                 kEvaluateExamples},
    CommandEntry{"predict", Command::kPredict, "Guesses for image files", &add_predict,
                 kPredictExamples},
    CommandEntry{"preview", Command::kPreview, "The first batch as a grid of images", &add_preview,
                 kPreviewExamples},
    CommandEntry{"export", Command::kExport, "Writes weights for other programs", &add_export,
                 kExportExamples},
    CommandEntry{"fetch", Command::kFetch, "Downloads a data set", &add_fetch, kFetchExamples},
    CommandEntry{"convert", Command::kConvert, "Makes other data formats from IDX", &add_convert,
                 kConvertExamples},
    CommandEntry{"report", Command::kReport, "One page on one or several runs", &add_report,
                 kReportExamples},
    CommandEntry{"doctor", Command::kDoctor, "What this machine has and what is wrong with it",
                 &add_doctor, kDoctorExamples},
    CommandEntry{"config-schema", Command::kConfigSchema,
                 "Prints the JSON Schema of the config (draft 2020-12)", &add_nothing,
                 kConfigSchemaExamples},
    CommandEntry{"completion", Command::kCompletion, "Prints a completion script for a shell",
                 &add_completion, kCompletionExamples},
    CommandEntry{"man-page", Command::kManPage, "Prints the man page", &add_nothing,
                 kManPageExamples},
};

/// CLI11 takes what follows an option for its value, a flag too.
void refuse_flags_as_values(CLI::App& command) {
  const CLI::Validator is_value(
      [](const std::string& value) {
        return value.starts_with("--") ? "needs a value, found the flag " + value : std::string();
      },
      "");
  for (CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() > 0) option->check(is_value);
  }
}

}  // namespace

std::span<const CommandEntry> command_table() { return kCommands; }

std::unique_ptr<CLI::App> make_parser(CommandLine& line) {
  auto parser = std::make_unique<CLI::App>(
      "Trains MNIST and its kind on several processes and GPUs.", "mnist-train");
  parser->footer(kExamples);
  parser->set_version_flag("--version", version_text());
  parser->require_subcommand(1);
  for (const CommandEntry& entry : kCommands) {
    CLI::App& command = *parser->add_subcommand(entry.name, entry.purpose);
    entry.add_flags(command, line);
    refuse_flags_as_values(command);
    command.footer(entry.examples);
  }
  return parser;
}

}  // namespace mnist_train::cli
