# shellcheck shell=bash
# Asking a registry for its documents: bounded in size and time, again for what passes by itself, redirects one at a
# time, and every byte hashed before anything reads it. How the login gets there is in login.sh.

readonly ASI_DOCUMENT_LIMIT=4194304 # bytes of the largest manifest or config, as the distribution specification advises
readonly ASI_ANSWER="${ASI_ATTEMPT_DIR}/login"

ASI_HTTP_STATUS=0
ASI_CURL_STATUS=0
ASI_FOREIGN=''        # set when the last answer came from a host behind a redirect

# asi::take_document FILE - the first bytes of an answer; one byte more than allowed tells that there was more.
asi::take_document() {
    head -c "$((ASI_DOCUMENT_LIMIT + 1))" > "$1"
}

# asi::request URL ACCEPT OPTION... - one request, no redirect; headers, body and curl's errors stay in files.
asi::request() {
    local -r url="$1" accept="$2"
    local protocols='=https'
    shift 2
    if [[ "${ASI_ALLOW_HTTP}" == yes ]]; then
        protocols='=http,https'
    fi
    : > "${ASI_ANSWER}/headers"
    : > "${ASI_ANSWER}/errors"
    ASI_CURL_STATUS=0
    # shellcheck disable=SC2034 # asi::tool reads it
    ASI_READER=asi::take_document
    asi::tool "${ASI_ANSWER}/body" 75 curl --disable --silent --show-error --stderr "${ASI_ANSWER}/errors" \
        --globoff --proto "${protocols}" --connect-timeout 15 --max-time 60 --max-filesize "${ASI_DOCUMENT_LIMIT}" \
        --user-agent airflow-provider-slurm-images --header "Accept: ${accept}" --header 'Accept-Encoding: identity' \
        --dump-header "${ASI_ANSWER}/headers" "$@" -- "${url}" || ASI_CURL_STATUS=$?
    # shellcheck disable=SC2034
    ASI_READER=asi::bounded
    ASI_HTTP_STATUS="$(awk '/^HTTP\// && $2 ~ /^[0-9]+$/ { code = $2 } END { print code + 0 }' "${ASI_ANSWER}/headers")"
}

# asi::header NAME - value of a header of the last answer; of several the last.
asi::header() {
    awk -v name="$1" '
        /^HTTP\// { value = "" }
        { colon = index($0, ":") }
        colon && tolower(substr($0, 1, colon - 1)) == name {
            value = substr($0, colon + 1); gsub(/^[ \t]+|[ \t\r]+$/, "", value)
        }
        END { print value }
    ' "${ASI_ANSWER}/headers"
}

# asi::retry_after - seconds that the last answer asks to wait, given as a number or a date; nothing for neither.
asi::retry_after() {
    local value='' when=''
    value="$(asi::header retry-after)"
    if [[ "${value}" =~ ^[0-9]{1,9}$ ]]; then
        printf '%d\n' "$((10#${value}))"
    elif [[ "${value}" =~ ^[A-Z][a-z]+,\ [A-Za-z0-9:\ -]+\ GMT$ ]] && when="$(date -d "${value}" +%s 2> /dev/null)"; then
        when="$((when - $(date +%s)))"
        printf '%d\n' "$((when > 0 ? when : 0))"
    fi
}

# asi::get URL ACCEPT OPTION... - a request, again for what may pass by itself, as long as the registry says.
asi::get() {
    local round=0 wait=''
    for ((round = 1; ; round++)); do
        asi::request "$@"
        case "${ASI_CURL_STATUS}/${ASI_HTTP_STATUS}" in
            */429 | */500 | */502 | */503 | */504 | [567]/* | 1[68]/* | 28/* | 52/* | 5[56]/* | 92/*) ;;
            *) return 0 ;;
        esac
        wait="$(asi::retry_after)"
        wait="${wait:-$((round * 2))}"
        if ((round == 3 || wait > 60)); then
            return 0
        fi
        asi::log "no good answer from the registry (HTTP status ${ASI_HTTP_STATUS}, curl ${ASI_CURL_STATUS}); again in ${wait} s"
        asi::tool "${ASI_SCRATCH}/pause" 90 sleep "${wait}" || true
    done
}

# asi::origin URL - scheme, host and port, in the one spelling that can be compared.
asi::origin() {
    local origin=''
    if [[ "$1" =~ ^https?://[^/?#]+ ]]; then
        origin="${BASH_REMATCH[0],,}"
        case "${origin}" in
            http://*) origin="${origin%:80}" ;;
            *) origin="${origin%:443}" ;;
        esac
    fi
    printf '%s\n' "${origin}"
}

# asi::target URL LOCATION - where an answer of URL redirects to; its LOCATION may be relative.
asi::target() {
    local base="${1%%[?#]*}"
    if [[ "${base}" =~ ^https?://[^/]+$ ]]; then
        base+=/
    fi
    if [[ "$2" =~ ^([A-Za-z][A-Za-z0-9+.-]*:|$) ]]; then
        printf '%s\n' "$2"
        return 0
    fi
    case "$2" in
        //*) printf '%s:%s\n' "${1%%:*}" "$2" ;;
        /*) printf '%s%s\n' "$(asi::origin "$1")" "$2" ;;
        \?*) printf '%s%s\n' "${base}" "$2" ;;
        *) printf '%s/%s\n' "${base%/*}" "$2" ;;
    esac
}

# asi::fetch KIND URL ACCEPT OPTION... - follow redirects, one at a time: no login goes to another host (KIND
# registry), or only what the netrc holds for it (KIND token), and never from TLS to none.
asi::fetch() {
    local -r kind="$1" accept="$3" first="$2"
    local url="$2" next='' hop=0
    shift 3
    ASI_FOREIGN=''
    for ((hop = 0; hop <= 5; hop++)); do
        asi::get "${url}" "${accept}" "$@"
        if [[ ! "${ASI_HTTP_STATUS}" =~ ^30[12378]$ ]]; then
            return 0
        fi
        next="$(asi::target "${url}" "$(asi::header location)")"
        if [[ "${url}" == https://* && "${next}" != https://* || ! "${next}" =~ ^https?://[A-Za-z0-9._-]+(:[0-9]+)?([/?][^[:space:]]*)?$ ]]; then
            asi::fail "${E_IMPORT_FAILED}" "$(asi::origin "${url}") redirects to a place that is not followed"
        fi
        if [[ "$(asi::origin "${next}")" != "$(asi::origin "${first}")" ]]; then
            ASI_FOREIGN="$(asi::origin "${next}")"
        fi
        if [[ "${kind}" == token && -s "${ASI_ANSWER}/netrc" ]]; then
            set -- --netrc-file "${ASI_ANSWER}/netrc"
        elif [[ "${kind}" == token || -n "${ASI_FOREIGN}" ]]; then
            set --
        fi
        url="${next}"
    done
    asi::fail "${E_IMPORT_FAILED}" "$(asi::origin "${first}") redirects without end"
}

# asi::refused KIND URL - end because of the last answer, in the words by which core/failures.py tells the cause.
# What the storage behind a registry refuses is no login; what a token service hands on to, is.
asi::refused() {
    local -r asked="registry ${ASI_REGISTRY}, repository ${ASI_REPOSITORY}, account ${ASI_ACCOUNT:-(none)}"
    if ((ASI_CURL_STATUS == 63)) || [[ -n "$(find "${ASI_ANSWER}/body" -size "+${ASI_DOCUMENT_LIMIT}c" 2> /dev/null)" ]]; then
        asi::fail "${E_NO_IMAGE}" "more than ${ASI_DOCUMENT_LIMIT} bytes where a manifest was expected (${asked})"
    fi
    if ((ASI_CURL_STATUS != 0)); then
        head -c 2000 -- "${ASI_ANSWER}/errors" >&2
        asi::fail "${E_IMPORT_FAILED}" "the registry gave no answer, curl ended with status ${ASI_CURL_STATUS} (${asked})"
    fi
    if [[ "$1" == registry && -n "${ASI_FOREIGN}" && "${ASI_HTTP_STATUS}" == 40[13] ]]; then
        asi::fail "${E_IMPORT_FAILED}" "${ASI_FOREIGN}, where the registry keeps it, answered with status ${ASI_HTTP_STATUS} (${asked})"
    fi
    printf '[ERROR] URL %s returned error code: %s\n' "${ASI_FOREIGN:-$2}" "${ASI_HTTP_STATUS}" >&2
    asi::fail "${E_IMPORT_FAILED}" "the registry refused with status ${ASI_HTTP_STATUS} (${asked})"
}

# asi::document PATH ACCEPT DIGEST FILE - a document of the registry, with the login it asks for; its bytes are
# hashed and compared before anything reads them.
asi::document() {
    local -r url="${ASI_BASE_URL}/$1" accept="$2" digest="$3" file="$4"
    local found=''
    asi::fetch registry "${url}" "${accept}" ${ASI_LOGIN_OPTIONS[@]+"${ASI_LOGIN_OPTIONS[@]}"}
    # The first answer, or a token that expired while the registry let us wait; a basic login does not get better.
    if [[ "${ASI_HTTP_STATUS}" == 401 && -z "${ASI_FOREIGN}" && "${ASI_LOGIN_OPTIONS[0]-}" != --netrc-file ]]; then
        asi::log_in
        asi::fetch registry "${url}" "${accept}" ${ASI_LOGIN_OPTIONS[@]+"${ASI_LOGIN_OPTIONS[@]}"}
    fi
    if ((ASI_CURL_STATUS != 0 || ASI_HTTP_STATUS != 200 || $(stat -c %s -- "${ASI_ANSWER}/body") > ASI_DOCUMENT_LIMIT)); then
        asi::refused registry "${url}"
    fi
    found="$(asi::header content-type)"
    if [[ "${found,,}" == application/vnd.docker.distribution.manifest.v1+* ]]; then # its digest is not that of its bytes
        asi::fail "${E_NO_IMAGE}" "${digest} of ${ASI_REPOSITORY} at ${ASI_REGISTRY} is no longer supported: Docker schema 1"
    fi
    found="sha256:$(asi::sha256 < "${ASI_ANSWER}/body")"
    if [[ "${found}" != "${digest}" ]]; then
        asi::fail "${E_MANIFEST}" "registry ${ASI_REGISTRY} serves other bytes for ${digest} of ${ASI_REPOSITORY}: they are ${found}"
    fi
    mv -f -- "${ASI_ANSWER}/body" "${file}"
}
