import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

export default defineConfig({
  // Addresses are relative to <base>, which the api sets to the prefix that a proxy serves it under.
  base: "./",
  plugins: [react()],
  build: {
    target: "es2022",
    assetsInlineLimit: 0, // the content security policy allows no data: addresses for scripts and styles
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 600,
  },
});
