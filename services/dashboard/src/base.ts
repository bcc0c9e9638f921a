// Where the api serves this application: "/" or, behind a proxy, a path prefix. Ends with "/". The api writes <base>.
export const BASE = new URL(".", document.baseURI).pathname;
