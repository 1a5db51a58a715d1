#!/usr/bin/env bash
# Runs `headway check` with the inputs of action.yml, which are environment variables. Writes the verdict to the summary
# of the job and to files, and exits with the status of the check.
set -euo pipefail

files=${RUNNER_TEMP:-$(mktemp -d)}
markdown=$files/headway-check.md
junit=$files/headway-check.xml
arguments=(--markdown "$markdown" --junit "$junit")

# Adds an option for each line of a text that is not empty.
add_lines() {
    local line
    while IFS= read -r line || [[ -n $line ]]; do
        line="${line#"${line%%[![:space:]]*}"}"
        if [[ -n $line ]]; then
            arguments+=("$1" "$line")
        fi
    done <<<"$2"
}

add_lines --fail-if "$FAIL_IF"
add_lines --set "${SET:-}"
add_lines --on "${ON:-}"
add_lines --seeds "${SEEDS:-}"
add_lines --budget "${BUDGET:-}"
if [[ -n ${BASE:-} ]]; then
    sides=("$BASE" "$CANDIDATE")
else
    revision=${GIT_REVISION:-${GITHUB_BASE_REF:+origin/$GITHUB_BASE_REF}}
    revision=${revision:-HEAD^}
    if ! git rev-parse --quiet --verify "$revision^{commit}" >/dev/null; then
        # A checkout of one commit lacks the base.
        git fetch --quiet --depth=1 origin "+refs/heads/${revision#origin/}:refs/remotes/origin/${revision#origin/}" || true
    fi
    sides=("$CANDIDATE")
    arguments+=(--git "$revision")
fi

status=0
headway check "${sides[@]}" "${arguments[@]}" || status=$?
case $status in
0) outcome=pass ;;
1) outcome=fail ;;
4) outcome="cannot tell" ;;
*) exit "$status" ;;
esac
if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then
    cat "$markdown" >>"$GITHUB_STEP_SUMMARY"
fi
if [[ -n ${GITHUB_OUTPUT:-} ]]; then
    printf '%s\n' "outcome=$outcome" "markdown=$markdown" "junit=$junit" >>"$GITHUB_OUTPUT"
fi
if [[ $status == 4 && ${CANNOT_TELL:-fail} == pass ]]; then
    status=0
fi
exit "$status"
