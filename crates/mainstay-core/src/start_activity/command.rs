//! Commands by what they are known to do, and their names without arguments, which may be secrets.

/// What a program is known to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    /// It may download.
    Downloads,
    Compiles,
}

const DOWNLOADERS: [&str; 19] = [
    "npm",
    "npx",
    "pnpm",
    "pnpx",
    "yarn",
    "bunx",
    "uv",
    "uvx",
    "pip",
    "pip3",
    "pipx",
    "curl",
    "wget",
    "git",
    "git-remote-https",
    "docker",
    "podman",
    "conda",
    "gem",
];

/// Programs that run servers, and download with one of these subcommands.
const RUNTIMES: [&str; 3] = ["bun", "deno", "poetry"];
const INSTALL: [&str; 7] = ["install", "i", "add", "x", "cache", "update", "lock"];

const COMPILERS: [&str; 24] = [
    "rustc", "cargo", "cc", "c++", "gcc", "g++", "clang", "clang++", "cc1", "cc1plus", "as", "ld",
    "lld", "ld.lld", "collect2", "make", "ninja", "cmake", "node-gyp", "javac", "tsc", "esbuild",
    "go", "swiftc",
];

/// Programs that execute a script, which is the program to name.
const INTERPRETERS: [&str; 11] =
    ["node", "python", "python3", "sh", "bash", "dash", "zsh", "ruby", "perl", "env", "nodejs"];

/// What a command is known to do.
pub(super) fn tool(command: &[String]) -> Option<Tool> {
    let name = program(command);
    let is = |names: &[&str]| names.contains(&name.as_str());
    let installs = || {
        let mut words = words(command).skip_while(|word| base(word) != name);
        words.nth(1).is_some_and(|word| INSTALL.contains(&word))
    };
    if is(&DOWNLOADERS) || (is(&RUNTIMES) && installs()) {
        Some(Tool::Downloads)
    } else if is(&COMPILERS) {
        Some(Tool::Compiles)
    } else {
        None
    }
}

/// The name of a command for people. Of the arguments only the subcommand of a known tool is shown.
pub(super) fn short_name(command: &[String]) -> String {
    let name = program(command);
    let is_word = |word: &&str| {
        word.len() <= 20 && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    let subcommand = words(command)
        .skip_while(|word| base(word) != name)
        .nth(1)
        .filter(|word| !word.starts_with('-'))
        .filter(is_word)
        .filter(|_| tool(command).is_some());
    match subcommand {
        Some(subcommand) => format!("{name} {subcommand}"),
        None => name,
    }
}

/// The program that a command executes: a script or module rather than its interpreter.
fn program(command: &[String]) -> String {
    let mut words = words(command);
    let Some(first) = words.next() else { return "?".to_owned() };
    let name = base(first);
    if !is_interpreter(name) {
        return clip(name);
    }
    let script = match words.next() {
        Some("-m") => words.next(),
        // Options of an interpreter may have arguments, and `-c` is followed by code.
        Some(word) if word.starts_with('-') => None,
        other => other,
    };
    clip(script.map_or(name, base))
}

/// Some programs, such as npm, write their arguments into one word.
fn words(command: &[String]) -> impl Iterator<Item = &str> {
    let separator = if command.len() == 1 { ' ' } else { '\0' };
    command.iter().flat_map(move |word| word.split(separator))
}

fn is_interpreter(name: &str) -> bool {
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    INTERPRETERS.contains(&name) || name == "python"
}

/// The last part of a path, without the ending of a script.
fn base(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or(word);
    match name {
        "npm-cli.js" => "npm",
        "npx-cli.js" => "npx",
        name => name,
    }
}

fn clip(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(40).collect()
}
