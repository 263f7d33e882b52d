# shellcheck shell=bash
# shellcheck disable=SC2034 # some names are read by the job's other files
# Logging in as Enroot would: with the login staged for this attempt, else the cluster user's own, answering what the
# registry asks for. No secret is ever an argument or an environment variable of a process: curl reads logins from a
# netrc file, tokens from a config file, both below the attempt directory, removed by asi::forget_credentials.

readonly ASI_TOKEN_HOST_BEHIND=authn.nvidia.com # nvcr.io's token service hands on to it
readonly ASI_SENDABLE='^[]!#-[^-~]+$' # what a token may hold: printable, and nothing that a config file would take apart

ASI_ACCOUNT=''       # login used, for messages
ASI_LOGIN_OPTIONS=() # curl options that carry the login, once the registry asked for one

# asi::site_settings - `NAME VALUE` lines of the site's Enroot configuration that decide how a registry is reached.
# Read and expanded as Enroot does at each of its own starts; the first definition of a name counts.
asi::site_settings() {
    local prefix='' file='' key='' value=''
    prefix="$(dirname "$(dirname "$(readlink -f "$(command -v enroot)")")")"
    if [[ "${prefix}" == /usr ]]; then
        prefix=''
    fi
    for file in "${prefix}/etc/enroot/enroot.conf" "${prefix}"/etc/enroot/enroot.conf.d/*.conf; do
        if [[ ! -f "${file}" ]]; then
            continue
        fi
        while IFS=$' \t=' read -r key value; do
            case "${key}" in
                ENROOT_CONFIG_PATH | SSL_CERT_FILE | SSL_CERT_DIR | all_proxy | no_proxy | http_proxy | https_proxy)
                    printf '%s %s\n' "${key}" "$(eval "echo ${value}" 2> /dev/null || true)"
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

# asi::require_login - a login staged for this attempt is used up by its first job; going on with another account's
# would be another import than asked for.
asi::require_login() {
    if [[ "${ASI_LOGIN_STAGED}" == 1 && ! -f "${ASI_ATTEMPT_DIR}/enroot-config/.credentials" ]]; then
        asi::fail "${E_LOGIN_USED}" "the login staged for this attempt is gone (was the job restarted?)"
    fi
}

# asi::credentials_file - the one staged for this attempt, else the cluster user's own.
asi::credentials_file() {
    if [[ "${ASI_LOGIN_STAGED}" == 1 ]]; then
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
                && "${BASH_REMATCH[1],,}" == "${host,,}" ]]; then
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

# The first parameter of a text, quoted or not: its name, two forms of its value, and what follows it.
readonly ASI_PARAMETER='^[[:space:],]*([^[:space:],="]+)[[:space:]]*=[[:space:]]*("([^"]*)"|([^[:space:],"]*))(.*)$'

# asi::parameter NAME TEXT - a parameter of the login challenge that TEXT begins with; names in any case.
asi::parameter() {
    local text="$2"
    while [[ "${text}" =~ ${ASI_PARAMETER} ]]; do
        if [[ "${BASH_REMATCH[1],,}" == "$1" ]]; then
            printf '%s\n' "${BASH_REMATCH[3]}${BASH_REMATCH[4]}"
            return 0
        fi
        text="${BASH_REMATCH[5]}"
    done
}

# asi::challenge - `bearer PARAMETERS` or `basic` from the headers of a 401: bearer with a realm before basic.
asi::challenge() {
    local line='' name='' basic=''
    while IFS= read -r line; do
        line="${line%$'\r'}"
        name="${line%%:*}"
        if [[ "${name,,}" != www-authenticate ]]; then
            continue
        fi
        line="${line#*:}"
        while [[ "${line}" =~ ^[[:space:],]*([^[:space:],]+)(.*)$ ]]; do
            name="${BASH_REMATCH[1],,}"
            line="${BASH_REMATCH[2]}"
            if [[ "${name}" == bearer && -n "$(asi::parameter realm "${line}")" ]]; then
                printf 'bearer %s\n' "${line}"
                return 0
            elif [[ "${name}" == basic ]]; then
                basic=basic
            fi
            while [[ "${line}" =~ ${ASI_PARAMETER} ]]; do
                line="${BASH_REMATCH[5]}"
            done
        done
    done < "${ASI_ANSWER}/headers"
    printf '%s\n' "${basic}"
}

# asi::log_in - answer the challenge of the last 401; sets ASI_LOGIN_OPTIONS.
asi::log_in() {
    local -r host="${ASI_REGISTRY%:*}"
    local scheme='' parameters='' realm=''
    ASI_LOGIN_OPTIONS=()
    read -r scheme parameters < <(asi::challenge) || true
    asi::write_netrc "${host}"
    if [[ "${scheme}" != bearer ]]; then
        if [[ "${scheme}" == basic && -s "${ASI_ANSWER}/netrc" ]]; then
            ASI_LOGIN_OPTIONS=(--netrc-file "${ASI_ANSWER}/netrc")
        fi
        return 0
    fi
    realm="$(asi::parameter realm "${parameters}")"
    if [[ ! "${realm}" =~ ^https?://([A-Za-z0-9._-]+)(:[0-9]+)?([/?][^[:space:]]*)?$ ]]; then
        asi::fail "${E_IMPORT_FAILED}" "registry ${ASI_REGISTRY} names no usable token service"
    fi
    if [[ "${realm}" == http://* && "${ASI_ALLOW_HTTP}" != yes ]]; then
        asi::fail "${E_IMPORT_FAILED}" "registry ${ASI_REGISTRY} names a token service over plain HTTP; no login is sent there"
    fi
    if [[ -n "${ASI_ACCOUNT}" ]]; then # as Enroot: no line for the registry's own host, no login anywhere
        asi::write_netrc "${host}" "${BASH_REMATCH[1]}" "${ASI_TOKEN_HOST_BEHIND}"
    fi
    asi::take_token "${realm}" "${parameters}"
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
    if ((ASI_CURL_STATUS == 0 && ASI_HTTP_STATUS == 400)); then
        asi::fail "${E_IMPORT_FAILED}" "the token service ${realm%%\?*} refused the login (account ${ASI_ACCOUNT:-(none)})"
    elif ((ASI_CURL_STATUS != 0 || ASI_HTTP_STATUS != 200)); then
        asi::refused token "${realm%%\?*}"
    fi
    token="$(jq -r '[.token, .access_token] | map(strings | select(. != "")) | .[0] // empty' "${ASI_ANSWER}/body" 2> /dev/null)" || true
    rm -f -- "${ASI_ANSWER}/body"
    if [[ ! "${token}" =~ ${ASI_SENDABLE} ]]; then
        asi::fail "${E_IMPORT_FAILED}" "the token service of registry ${ASI_REGISTRY} gave no usable token"
    fi
    printf 'header = "Authorization: Bearer %s"\n' "${token}" > "${ASI_ANSWER}/token"
    ASI_LOGIN_OPTIONS=(--config "${ASI_ANSWER}/token")
}
