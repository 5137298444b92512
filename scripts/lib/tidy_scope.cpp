// A plug-in for clang-tidy that makes its checks visit only our declarations, not those of system
// headers: LibTorch's would take most of the time, although findings in them are never reported.
// (clang-tidy 21 and later do this by themselves.)

#include <clang/AST/ASTConsumer.h>
#include <clang/AST/ASTContext.h>
#include <clang/Frontend/FrontendPluginRegistry.h>

#include <memory>
#include <string>
#include <vector>

namespace {

class OwnDeclarations : public clang::ASTConsumer {
 public:
  void HandleTranslationUnit(clang::ASTContext& context) override {
    std::vector<clang::Decl*> own;
    for (clang::Decl* declaration : context.getTranslationUnitDecl()->decls()) {
      if (!context.getSourceManager().isInSystemHeader(declaration->getLocation())) {
        own.push_back(declaration);
      }
    }
    context.setTraversalScope(own);
  }
};

class BeforeChecks : public clang::PluginASTAction {
  std::unique_ptr<clang::ASTConsumer> CreateASTConsumer(clang::CompilerInstance& /*compiler*/,
                                                        llvm::StringRef /*file*/) override {
    return std::make_unique<OwnDeclarations>();
  }
  bool ParseArgs(const clang::CompilerInstance& /*compiler*/,
                 const std::vector<std::string>& /*arguments*/) override {
    return true;
  }
  ActionType getActionType() override { return AddBeforeMainAction; }
};

const clang::FrontendPluginRegistry::Add<BeforeChecks> registration(
    "own-declarations", "limits checks to our declarations");

}  // namespace
