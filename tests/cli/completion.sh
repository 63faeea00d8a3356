#!/usr/bin/env bash
# What a shell completes, and the manual page: both have every command and every option that --help has.
. tests/cli/lib.sh

commands=$("$FUSEBOX" --help | sed -nE 's/^  ([a-z]+) +[A-Z].*/\1/p')
holds "commands are found in --help" test "$(wc -w <<<"$commands")" -ge 10
options_of() { "$FUSEBOX" "$1" --help | grep -oE '^ +(-[a-z], )?--[a-z-]+' | grep -oE -- '--[a-z-]+'; }

# ---- bash
"$FUSEBOX" completion bash >"$work/bash"
cat >"$work/complete" <<'B'
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_fusebox
printf '%s\n' "${COMPREPLY[@]}"
B
completes() { bash "$work/complete" "$work/bash" fusebox "$@" 2>&1; }
holds "bash: the script is one" bash -n "$work/bash"
is "bash: complete is told" "$(bash -c "source '$work/bash'; complete -p fusebox")" "complete -F _fusebox fusebox"
is "bash: all commands" "$(completes "" | grep -v '^--' | sort | xargs)" "$(printf '%s\n' $commands help | sort | xargs)"
is "bash: a command" "$(completes qua)" quantize
is "bash: an option" "$(completes run --rep)" --repeat-penalty
is "bash: choices" "$(completes run --cache "" | xargs)" "dense window sinks"
is "bash: types" "$(completes run --act b)" bf16
is "bash: a value that is anything" "$(completes run --temp "")" ""
is "bash: a file" "$(completes run -f READ)" README.md
is "bash: MODEL" "$(completes run models/st)" models/storyteller
is "bash: help" "$(completes help ver)" verify
is "bash: completion" "$(completes completion z)" zsh
for command in $commands; do
    [ "$command" != completion ] || continue
    is "bash: all options of $command" "$(completes "$command" -- | grep -vxE -- '--model' | sort | xargs)" "$(options_of "$command" | sort | xargs)"
done

# ---- zsh, fish
for shell in zsh fish; do
    "$FUSEBOX" completion $shell >"$work/$shell"
    for command in $commands; do
        [ "$command" != completion ] || continue
        for option in $(options_of "$command"); do
            grep -qE -- "(-l ${option#--} |-l ${option#--}\$|['(,]$option|$option\))" "$work/$shell" || not_ok "$shell: $command" "$option is missing"
        done
    done
    ok "$shell: options"
    if command -v $shell >/dev/null; then
        holds "$shell: the script is one" $shell -n "$work/$shell"
    else
        echo "not ok 1 # SKIP the syntax of the script for $shell: it is not here"
    fi
done
if command -v fish >/dev/null; then
    suggests() { HOME=$work fish -c "source '$work/fish'; complete -C '$1'" | cut -f1 | xargs; }
    is "fish: a command" "$(suggests 'fusebox qua')" quantize
    is "fish: choices" "$(suggests 'fusebox run --cache ')" "dense sinks window"
    is "fish: an option" "$(suggests 'fusebox run --repeat')" --repeat-penalty
fi
refuses "completion: no shell" 2 'shell: none given \(bash, zsh or fish\)$' completion
refuses "completion: another shell" 2 'shell: tcsh \(bash, zsh or fish\)$' completion tcsh

# ---- the manual page
"$FUSEBOX" man >"$work/fusebox.1"
holds "man: nothing is wrong with it" test -z "$(mandoc -Tlint "$work/fusebox.1" 2>&1 | grep -vE 'STYLE|missing date')"
mandoc -Tascii "$work/fusebox.1" 2>&1 | sed 's/.\x08//g' >"$work/page"
for command in $commands; do
    matches "man: $command" "$work/page" "^FUSEBOX ${command^^}\$"
    for option in $(options_of "$command"); do
        [ "$option" = --help ] || grep -qE -- "^ +(-[a-z], )?$option( |\$)" "$work/page" || not_ok "man: $command" "$option is missing"
    done
done
matches "man: defaults" "$work/page" '0 takes the best token \(0 to 100; default 0.7\)'
is "man is not listed" "$("$FUSEBOX" --help | grep -c '^  man ')" 0
finish
