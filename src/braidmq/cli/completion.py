"""`braid completion`: a completion script for the shell, generated from the parser.

The script is static except for topic names, which it asks the broker for when one is expected; with no broker there it
completes nothing.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers

if TYPE_CHECKING:
    from braidmq.cli.tree import Node, Option

_EPILOG = """install:
  bash:  braid completion bash > ~/.local/share/bash-completion/completions/braid
  zsh:   braid completion zsh > a directory of $fpath, as _braid
  fish:  braid completion fish > ~/.config/fish/completions/braid.fish"""

_TOPICS = "braid topic ls --quiet --timeout 1s 2>/dev/null"


def register(commands: Subparsers) -> None:
    about = "Print a completion script for a shell."
    parser = commands.add_parser("completion", help=about, description=about, epilog=_EPILOG)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell the script is for")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from braidmq.cli.parser import build_parser
    from braidmq.cli.tree import command_tree

    make = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[args.shell]
    print(make(command_tree(build_parser())), end="")
    return Exit.OK


# --- bash


def bash_script(root: Node) -> str:
    """A function that follows the words to a command, then offers what that command takes."""
    nodes = list(root.walk())
    steps = "\n".join(
        f'            "{_joined(node)} {child.path[-1]}") path="{_joined(child)}" ;;' for node in nodes for child in node.children
    )
    values = "\n".join(line for node in nodes for option in node.options if (line := _bash_value(node, option)))
    offers = "\n".join(_bash_offer(node) for node in nodes)
    return f"""# bash completion for braid; made by `braid completion bash`
_braid() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" path="braid" word
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$path $word" in
{steps}
        esac
    done
    case "$path $previous" in
{values}
    esac
    case "$path" in
{offers}
    esac
}}
complete -o default -F _braid braid
"""


def _joined(node: Node) -> str:
    return " ".join(node.path)


def _bash_value(node: Node, option: Option) -> str:
    """What follows a flag that takes a value."""
    if not option.metavar:
        return ""
    patterns = "|".join(f'"{_joined(node)} {flag}"' for flag in option.flags)
    if option.choices:
        return f'        {patterns}) COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$current")); return ;;'
    # With nothing to offer, `-o default` falls back to file names: right for files, harmless for numbers.
    return f"        {patterns}) return ;;"


def _bash_offer(node: Node) -> str:
    words = [*(child.path[-1] for child in node.children), *(flag for option in node.options for flag in option.flags)]
    words += [choice for argument in node.arguments for choice in argument.choices]
    topics = f" $({_TOPICS})" if any(argument.takes_topic for argument in node.arguments) else ""
    files = any(argument.takes_file for argument in node.arguments)
    if files:
        # Options only after a dash, so that `-o default` offers files otherwise.
        return (
            f'        "{_joined(node)}") [[ "$current" == -* ]] && COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$current")) ;;'
        )
    return f'        "{_joined(node)}") COMPREPLY=($(compgen -W "{" ".join(words)}{topics}" -- "$current")) ;;'


# --- zsh


def zsh_script(root: Node) -> str:
    """One function a command; `_arguments` does the matching."""
    functions = "\n".join(_zsh_function(node) for node in root.walk())
    return f"""#compdef braid
# zsh completion for braid; made by `braid completion zsh`
_braid_topics() {{
    local -a topics
    topics=(${{(f)"$({_TOPICS})"}})
    compadd -a topics
}}
{functions}
if [ "$funcstack[1]" = "_braid" ]; then
    _braid "$@"
else
    compdef _braid braid
fi
"""


def _zsh_function(node: Node) -> str:
    lines = [f"        {_zsh_option(option, flag)} \\" for option in node.options for flag in option.flags]
    if node.children:
        lines.append("        '1: :->command' '*:: :->rest'")
    else:
        for place, argument in enumerate(node.arguments, 1):
            where = "*" if argument.repeats else str(place)
            lines.append(f"        '{where}:{_zsh_text(argument.name)}:{_zsh_action(argument)}' \\")
        lines.append("        && return")
    body = "\n".join(["    _arguments -s \\", *lines])
    name = "_" + "_".join(node.path)
    if not node.children:
        return f"{name}() {{\n{body}\n}}\n"
    described = "\n".join(f"            '{child.path[-1]}:{_zsh_text(child.help)}'" for child in node.children)
    cases = "\n".join(f"            {child.path[-1]}) _{'_'.join(child.path)} ;;" for child in node.children)
    return f"""{name}() {{
    local state line
    local -a commands
{body}
    case $state in
        command)
            commands=(
{described}
            )
            _describe command commands ;;
        rest)
            case $words[1] in
{cases}
            esac ;;
    esac
}}
"""


def _zsh_text(text: str) -> str:
    return text.replace("'", "").replace("[", "(").replace("]", ")").replace(":", " -").replace("`", "")


def _zsh_option(option: Option, flag: str) -> str:
    star = "*" if option.repeats else ""
    value = f":{_zsh_text(option.metavar)}:{_zsh_action(option)}" if option.metavar else ""
    return f"'{star}{flag}[{_zsh_text(option.help)}]{value}'"


def _zsh_action(option: Option) -> str:
    if option.choices:
        return f"({' '.join(option.choices)})"
    return "_files" if option.takes_file else "_braid_topics" if option.takes_topic else " "


# --- fish


def fish_script(root: Node) -> str:
    """One `complete` line a word, on the condition that the words before the cursor name its command."""
    lines = [
        "# fish completion for braid; made by `braid completion fish`",
        "function __braid_exactly",
        "    set -l words (commandline -opc | string match -v -r '^-')",
        '    test "$words" = "$argv"',
        "end",
        "function __braid_under",
        "    set -l words (commandline -opc | string match -v -r '^-')",
        '    string match -q -- "$argv *" "$words "',
        "end",
        "complete -c braid -f",
    ]
    for node in root.walk():
        exactly, under = f"-n '__braid_exactly {_joined(node)}'", f"-n '__braid_under {_joined(node)}'"
        lines += [f"complete -c braid {exactly} -a {child.path[-1]} -d '{_fish_text(child.help)}'" for child in node.children]
        for argument in node.arguments:
            if argument.choices:
                lines.append(f"complete -c braid {under} -a '{' '.join(argument.choices)}'")
            elif argument.takes_topic:
                lines.append(f"complete -c braid {under} -a '({_TOPICS})'")
            elif argument.takes_file:
                lines.append(f"complete -c braid {under} -F")
        where = exactly if node.children else under
        lines += [f"complete -c braid {where} {_fish_option(option)}" for option in node.options]
    return "\n".join(lines) + "\n"


def _fish_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _fish_option(option: Option) -> str:
    names = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
    value = ""
    if option.choices:
        value = f" -x -a '{' '.join(option.choices)}'"
    elif option.takes_file:
        value = " -r -F"
    elif option.metavar:
        value = " -x"
    return f"{names}{value} -d '{_fish_text(option.help)}'"
