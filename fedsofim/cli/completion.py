"""`fedsofim completion`: the script that lets a shell complete commands, options and keys."""

from collections.abc import Sequence

from fedsofim.core.arguments import Parser

ABOUT = """Print the script that completes commands, options, keys and their values. To use it in
every new shell:
  bash  echo 'eval "$(fedsofim completion bash)"' >> ~/.bashrc
  zsh   echo 'eval "$(fedsofim completion zsh)"' >> ~/.zshrc     (after compinit)
  fish  fedsofim completion fish > ~/.config/fish/completions/fedsofim.fish"""

# 'fedsofim complete WORDS' prints a candidate a line, a tab, and what it is.
BASH = r"""_fedsofim() {
    local line="${COMP_LINE:0:COMP_POINT}" words candidate
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local word="${words[-1]}" cut=""
    # bash replaces what stands behind the last '=' only, which it takes for a word of its own
    [[ $COMP_WORDBREAKS == *=* && $word == *=* ]] && cut="${word%"${word##*=}"}"
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        COMPREPLY+=("${candidate#"$cut"}")
    done < <("${words[0]}" complete -- "${words[@]:1}" 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    [[ ${#COMPREPLY[@]} -gt 0 ]] || compopt -o default
}
complete -o nosort -F _fedsofim fedsofim
"""
ZSH = r"""_fedsofim() {
    local -a found; local line
    for line in "${(@f)$(${words[1]} complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        found+=("${line%%$'\t'*}")
    done
    if [[ -n ${found[1]} ]]; then
        compadd -Q -S '' -a found
    else
        _files
    fi
}
compdef _fedsofim fedsofim
"""
FISH = r"""function __fedsofim_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] complete -- $words[2..-1] 2>/dev/null
end
complete -c fedsofim -a '(__fedsofim_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim completion", description=ABOUT)
    made.add_argument("shell", choices=list(SCRIPTS))
    return made


def main(arguments: Sequence[str]) -> None:
    """Print a shell's script."""
    if not arguments:
        return parser().print_help()
    print(SCRIPTS[parser().read(arguments).shell], end="")
