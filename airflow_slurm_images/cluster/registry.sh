# shellcheck shell=bash
# Asking a registry as Enroot would: the same credentials, proxies and certificates, but every answer bounded and
# kept as bytes. No secret is ever an argument or an environment variable of a process: curl reads the login from a
# netrc file, the token from a config file, both below the attempt directory, removed by asi::forget_credentials.

readonly ASI_DOCUMENT_LIMIT=4194304 # bytes of the largest manifest or config, as the distribution specification advises
readonly ASI_ANSWER="${ASI_ATTEMPT_DIR}/login"

ASI_HTTP_STATUS=0
ASI_CURL_STATUS=0
ASI_FOREIGN=''        # set when the last answer came from a host behind a redirect
ASI_ACCOUNT=''        # login used, for messages
ASI_LOGIN_OPTIONS=()  # curl options that carry the login, once the registry asked for one

# asi::site_settings ENROOT - `NAME VALUE` lines of the site's Enroot configuration that decide how a registry is
# reached. Read and expanded as Enroot does at each of its own starts; the first definition of a name counts.
asi::site_settings() {
    local prefix='' file='' key='' value=''
    prefix="$(dirname "$(dirname "$(readlink -f "$(command -v enroot)")")")"
    for file in "${prefix#/usr}/etc/enroot/enroot.conf" "${prefix#/usr}"/etc/enroot/enroot.conf.d/*.conf; do
        if [[ ! -f "${file}" ]]; then
            continue
        fi
        while IFS=$' \t=' read -r key value; do
            case "${key}" in
                ENROOT_CONFIG_PATH | SSL_CERT_FILE | SSL_CERT_DIR | all_proxy | no_proxy | http_proxy | https_proxy)
                    printf '%s %s\n' "${key}" "$(eval "echo ${value}" 2> /dev/null)"
                    ;;
            esac
        done < "${file}"
    done
}

# asi::use_site_settings - what the job's own environment does not say, the site's configuration does.
asi::use_site_settings() {
    local key='' value=''
    while read -r key value; do
        if [[ -z "${!key-}" && -n "${value}" ]]; then
            export "${key}=${value}"
        fi
    done < <(asi::site_settings)
}

# asi::credentials_file - the one staged for this attempt, else the cluster user's own.
asi::credentials_file() {
    if [[ "${ASI_LOGIN}" == staged ]]; then
        printf '%s\n' "${ASI_ATTEMPT_DIR}/enroot-config/.credentials"
    else
        printf '%s\n' "${ENROOT_CONFIG_PATH:-${HOME}/.config/enroot}/.credentials"
    fi
}

# asi::write_netrc HOST... - the lines of these hosts in a file of our own. As Enroot reads them: one line an entry,
# the first of a host counts, a password that begins with `$` is evaluated by a shell.
asi::write_netrc() {
    local line='' file='' secret='' host=''
    file="$(asi::credentials_file)"
    : > "${ASI_ANSWER}/netrc"
    if [[ ! -r "${file}" ]]; then
        return 0
    fi
    for host in "$@"; do
        while IFS= read -r line || [[ -n "${line}" ]]; do
            if [[ "${line}" =~ ^machine[[:space:]]+([^[:space:]]+)[[:space:]]+login[[:space:]]+([^[:space:]]+)[[:space:]]+password[[:space:]]+(.*)$ \
                && "${BASH_REMATCH[1]}" == "${host}" ]]; then
                ASI_ACCOUNT="${BASH_REMATCH[2]}"
                secret="${BASH_REMATCH[3]}"
                if [[ "${secret}" == '$'* ]]; then
                    secret="$(printf 'echo %s\n' "${secret}" | timeout 60 sh 2> /dev/null)" || true
                fi
                printf 'machine %s login %s password %s\n' "${host}" "${ASI_ACCOUNT}" "${secret}" >> "${ASI_ANSWER}/netrc"
                break
            fi
        done < "${file}"
    done
}

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
    ASI_READER=asi::take_document
    asi::tool "${ASI_ANSWER}/body" 75 curl --disable --silent --show-error --stderr "${ASI_ANSWER}/errors" \
        --globoff --proto "${protocols}" --connect-timeout 15 --max-time 60 --max-filesize "${ASI_DOCUMENT_LIMIT}" \
        --user-agent airflow-provider-slurm-images --header "Accept: ${accept}" \
        --dump-header "${ASI_ANSWER}/headers" "$@" -- "${url}" || ASI_CURL_STATUS=$?
    ASI_READER=asi::bounded
    ASI_HTTP_STATUS="$(awk '/^HTTP\// { code = $2 } END { print code + 0 }' "${ASI_ANSWER}/headers")"
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

# asi::get URL ACCEPT OPTION... - a request, again for what may pass by itself, as long as the registry says.
asi::get() {
    local round=0 wait=''
    for ((round = 1; ; round++)); do
        asi::request "$@"
        case "${ASI_CURL_STATUS}/${ASI_HTTP_STATUS}" in
            */429 | */500 | */502 | */503 | */504 | [567]/* | 1[68]/* | 28/* | 52/* | 5[56]/* | 92/*) ;;
            *) return 0 ;;
        esac
        wait="$(asi::header retry-after)"
        if [[ ! "${wait}" =~ ^[0-9]{1,6}$ ]]; then
            wait=$((round * 2))
        fi
        if ((round == 3 || 10#${wait} > 60)); then
            return 0
        fi
        asi::log "no good answer from the registry (HTTP status ${ASI_HTTP_STATUS}, curl ${ASI_CURL_STATUS}); again in ${wait} s"
        asi::tool "${ASI_SCRATCH}/pause" 90 sleep "${wait}"
    done
}

# asi::origin URL - scheme, host and port.
asi::origin() {
    [[ "$1" =~ ^https?://[^/?#]+ ]] && printf '%s\n' "${BASH_REMATCH[0]}"
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
        next="$(asi::header location)"
        case "${next}" in
            //*) next="${url%%:*}:${next}" ;;
            /*) next="$(asi::origin "${url}")${next}" ;;
        esac
        if [[ "${url}" == https://* && "${next}" != https://* || ! "${next}" =~ ^https?://[A-Za-z0-9.-]+(:[0-9]+)?([/?][^[:space:]]*)?$ ]]; then
            asi::fail "${E_IMPORT_FAILED}" "$(asi::origin "${url}") redirects to a place that is not followed"
        fi
        if [[ "$(asi::origin "${next}")" != "$(asi::origin "${first}")" ]]; then
            ASI_FOREIGN="$(asi::origin "${next}")"
            if [[ "${kind}" == registry ]]; then
                set --
            fi
        fi
        url="${next}"
    done
    asi::fail "${E_IMPORT_FAILED}" "$(asi::origin "${first}") redirects without end"
}

# asi::parameter NAME TEXT - a parameter of a login challenge, quoted or not; names in any case.
asi::parameter() {
    shopt -s nocasematch
    if [[ "$2" =~ (^|[[:space:],])$1[[:space:]]*=[[:space:]]*(\"([^\"]*)\"|([^[:space:],\"]*)) ]]; then
        printf '%s\n' "${BASH_REMATCH[3]}${BASH_REMATCH[4]}"
    fi
    shopt -u nocasematch
}

# asi::challenge - `bearer PARAMETERS` or `basic` from the headers of a 401: bearer before basic.
asi::challenge() {
    local line='' basic=''
    while IFS= read -r line; do
        line="${line%$'\r'}"
        if [[ "${line%%:*}" != [Ww][Ww][Ww]-[Aa]uthenticate && "${line%%:*}" != WWW-AUTHENTICATE ]]; then
            continue
        fi
        line="${line#*:}"
        if [[ "${line}" =~ (^|[[:space:],])[Bb][Ee][Aa][Rr][Ee][Rr][[:space:]]+(.*)$ ]]; then
            printf 'bearer %s\n' "${BASH_REMATCH[2]}"
            return 0
        elif [[ "${line}" =~ (^|[[:space:],])[Bb][Aa][Ss][Ii][Cc]([[:space:],]|$) ]]; then
            basic=basic
        fi
    done < "${ASI_ANSWER}/headers"
    printf '%s\n' "${basic}"
}

# asi::log_in - answer the challenge of the last 401; sets ASI_LOGIN_OPTIONS.
asi::log_in() {
    local scheme='' parameters='' realm='' host=''
    read -r scheme parameters < <(asi::challenge) || true
    host="${ASI_REGISTRY%:*}"
    asi::write_netrc "${host}"
    if [[ "${scheme}" == bearer ]]; then
        realm="$(asi::parameter realm "${parameters}")"
        if [[ ! "${realm}" =~ ^https?://([A-Za-z0-9.-]+)(:[0-9]+)?([/?][^[:space:]]*)?$ ]]; then
            asi::fail "${E_IMPORT_FAILED}" "registry ${ASI_REGISTRY} names no usable token service"
        elif [[ "${realm}" == http://* && "${ASI_ALLOW_HTTP}" != yes ]]; then
            asi::fail "${E_IMPORT_FAILED}" "registry ${ASI_REGISTRY} names a token service over plain HTTP; no login is sent there"
        fi
        if [[ -n "${ASI_ACCOUNT}" && "${BASH_REMATCH[1]}" != "${host}" ]]; then
            # Enroot logs in only where the registry's own host has a line; further hosts are asked of the same file.
            asi::write_netrc "${host}" "${BASH_REMATCH[1]}" authn.nvidia.com
        fi
        asi::take_token "${realm}" "${parameters}"
    elif [[ -s "${ASI_ANSWER}/netrc" ]]; then
        ASI_LOGIN_OPTIONS=(--netrc-file "${ASI_ANSWER}/netrc")
    fi
}

# asi::take_token REALM PARAMETERS - a token for reading, kept in a config file of curl.
asi::take_token() {
    local -r realm="$1"
    local -a query=() scopes=()
    local scope='' service='' token=''
    service="$(asi::parameter service "$2")"
    read -r -a scopes < <(asi::parameter scope "$2") || true
    if ((${#scopes[@]} == 0)); then
        scopes=("repository:${ASI_REPOSITORY}:pull")
    fi
    for scope in "${scopes[@]}"; do
        if [[ "${scope}" == repository*:*:* ]]; then
            scope="${scope%:*}:pull"
        fi
        query+=(--data-urlencode "scope=${scope}")
    done
    if [[ -n "${service}" ]]; then
        query+=(--data-urlencode "service=${service}")
    fi
    if [[ -s "${ASI_ANSWER}/netrc" ]]; then
        query+=(--netrc-file "${ASI_ANSWER}/netrc")
    fi
    asi::fetch token "${realm}" application/json --get "${query[@]}"
    if ((ASI_CURL_STATUS != 0 || ASI_HTTP_STATUS != 200)); then
        asi::refused "${realm%%\?*}"
    fi
    token="$(jq -r '.token // .access_token // empty | strings' "${ASI_ANSWER}/body" 2> /dev/null)" || true
    rm -f -- "${ASI_ANSWER}/body"
    if [[ ! "${token}" =~ ^[A-Za-z0-9._~+/=:@,\;-]+$ ]]; then
        asi::fail "${E_IMPORT_FAILED}" "the token service of registry ${ASI_REGISTRY} gave no usable token"
    fi
    printf 'header = "Authorization: Bearer %s"\n' "${token}" > "${ASI_ANSWER}/token"
    ASI_LOGIN_OPTIONS=(--config "${ASI_ANSWER}/token")
}

# asi::refused URL - end because of the last answer, in the words by which core/failures.py tells the cause.
asi::refused() {
    local -r asked="registry ${ASI_REGISTRY}, repository ${ASI_REPOSITORY}, account ${ASI_ACCOUNT:-(none)}"
    if ((ASI_CURL_STATUS != 0)); then
        head -c 2000 -- "${ASI_ANSWER}/errors" >&2
        if ((ASI_CURL_STATUS == 63 || ASI_CURL_STATUS == 23)); then
            asi::fail "${E_NO_IMAGE}" "more than ${ASI_DOCUMENT_LIMIT} bytes where a manifest was expected (${asked})"
        fi
        asi::fail "${E_IMPORT_FAILED}" "the registry gave no answer, curl ended with status ${ASI_CURL_STATUS} (${asked})"
    fi
    if [[ -n "${ASI_FOREIGN}" && "${ASI_HTTP_STATUS}" == 40[13] ]]; then
        asi::fail "${E_IMPORT_FAILED}" "${ASI_FOREIGN}, where the registry keeps it, answered with status ${ASI_HTTP_STATUS} (${asked})"
    fi
    printf '[ERROR] URL %s returned error code: %s\n' "${ASI_FOREIGN:-$1}" "${ASI_HTTP_STATUS}" >&2
    asi::fail "${E_IMPORT_FAILED}" "the registry refused with status ${ASI_HTTP_STATUS} (${asked})"
}

# asi::document PATH ACCEPT DIGEST FILE - a document of the registry, with the login it asks for; its bytes are
# hashed and compared before anything reads them.
asi::document() {
    local -r url="${ASI_BASE_URL}/$1" accept="$2" digest="$3" file="$4"
    local found=''
    asi::fetch registry "${url}" "${accept}" "${ASI_LOGIN_OPTIONS[@]+"${ASI_LOGIN_OPTIONS[@]}"}"
    if [[ "${ASI_HTTP_STATUS}" == 401 && -z "${ASI_FOREIGN}" ]] && ((${#ASI_LOGIN_OPTIONS[@]} == 0)); then
        asi::log_in
        asi::fetch registry "${url}" "${accept}" "${ASI_LOGIN_OPTIONS[@]+"${ASI_LOGIN_OPTIONS[@]}"}"
    fi
    if ((ASI_CURL_STATUS != 0 || ASI_HTTP_STATUS != 200)); then
        asi::refused "${url}"
    fi
    found="sha256:$(asi::sha256 < "${ASI_ANSWER}/body")"
    if [[ "${found}" != "${digest}" ]]; then
        asi::fail "${E_MANIFEST}" "registry ${ASI_REGISTRY} serves other bytes for ${digest} of ${ASI_REPOSITORY}: they are ${found}"
    fi
    mv -f -- "${ASI_ANSWER}/body" "${file}"
}
